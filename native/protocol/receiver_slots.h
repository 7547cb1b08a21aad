// Receiver-side slots, into which the sender writes.
//
// Edges whose tensors have the same size share one pool of slots. The slot that was returned last
// is used first, because it is most likely in the receiver's cache. A pool has a slot for each of
// its edges, because all of them may be in flight in the first step, and grows when none is free.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/owner_ref.h"
#include "protocol/reliable_notifier.h"
#include "protocol/static_slots.h"

namespace rdma_transport {

// No call waits for the peer, except Send().
class ReceiverSlots final : public StaticSlots {
 public:
  // Set in all cookies of Write().
  static constexpr uint64_t kCookieBit = uint64_t{1} << 63;

  // The arguments must outlive it.
  ReceiverSlots(const LinkContext& context, fabric::Channel* channel, ReliableNotifier* notifier)
      : StaticSlots(context, channel), notifier_(notifier) {}

  // Adds the edge to the pool of its size.
  void Join(EdgeVariant* variant) override;
  // Requests what an edge that needs `slots` slots alone adds to what the pool has requested.
  void OnDeclared(const EdgeVariant& variant, uint32_t slots) override;
  // The last edge removes the pool.
  void Leave(const EdgeVariant& variant) override;
  bool Send(const std::string& key, EdgeVariant* variant, Outgoing* tensor,
            SendOutcome* outcome) override;

  // Messages of the receiver. A DataLoss status means a protocol violation.
  Status OnSlot(const PoolSlotMessage& message);
  Status OnCredit(uint64_t credit);
  // A write has ended as `status` says, so its source may change.
  void OnWritten(uint64_t cookie, const Status& status);
  // The link has ended: releases the sources of writes in progress.
  void Abandon();

  uint64_t PromisedBytes() const override;
  void Report(const EdgeVariant& variant, EdgeReport* report) const override;

 private:
  struct Slot {
    fabric::RemoteSpan span;
    bool busy = false;  // waiting for its credit
  };
  struct Pool {
    uint64_t bytes = 0;
    uint32_t edges = 0;
    uint32_t requested = 0;
    std::vector<Slot> slots;
    std::vector<uint16_t> free;  // a stack
  };
  struct Writing {
    OwnerRef source;
    Nanos begin = 0;
  };

  Pool* FindLocked(uint32_t number);
  void SendRequest(uint32_t number, uint32_t slots);
  // Takes a free slot and returns null. Returns the reason if there is none, and then requests one
  // more slot, within the limit of the pool.
  const char* Take(uint32_t number, uint16_t* slot, fabric::RemoteSpan* span);
  // Frees a slot that was not written.
  void Return(uint32_t number, uint16_t slot);
  // Frees a slot that was written, and whose tensor the receiver will not hear of. Writes may
  // overtake each other, so the receiver first confirms that this one has arrived.
  void ReturnWritten(uint32_t number, uint16_t slot);

  ReliableNotifier* const notifier_;

  mutable std::mutex mu_;
  uint32_t next_number_ = 1;
  std::map<uint64_t, uint32_t> by_bytes_;
  std::map<uint32_t, Pool> pools_;  // by number
  uint64_t next_cookie_ = kCookieBit;
  std::map<uint64_t, Writing> writing_;  // by cookie
};

}  // namespace rdma_transport
