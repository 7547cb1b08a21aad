// The receiver-side slots of one link, as the sender sees them.
//
// Edges whose tensors have the same size share one pool of slots. The slot that was returned last
// is used first, because it is most likely in the receiver's cache. A pool has a slot for each of
// its edges, because all of them may be in flight in the first step, and grows when none is free.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/reliable_notifier.h"
#include "protocol/static_edge.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Thread-safe. No call waits for the peer.
class ReceiverSlots {
 public:
  // The arguments must outlive it.
  ReceiverSlots(fabric::Channel* channel, ReliableNotifier* notifier)
      : channel_(channel), notifier_(notifier) {}

  // Adds an edge to the pool of this size. Returns the pool's number.
  uint32_t Join(uint64_t bytes);
  // Removes an edge. The last one removes the pool.
  void Leave(uint32_t number);
  // Requests what an edge that needs `slots` slots alone adds to what the pool has requested. The
  // receiver must know the edge.
  void Request(uint32_t number, uint32_t slots);

  // Takes a free slot and returns null. Returns the reason if there is none, and then requests one
  // more slot, within the limit of the pool.
  const char* Take(uint32_t number, uint16_t* slot, fabric::RemoteSpan* span);
  // Frees a slot that was not written.
  void Return(uint32_t number, uint16_t slot);
  // Frees a slot that was written, and whose tensor the receiver will not hear of. Writes may
  // overtake each other, so the receiver first confirms that this one has arrived.
  void ReturnWritten(uint32_t number, uint16_t slot);

  // Messages of the receiver. A DataLoss status means a protocol violation.
  Status OnSlot(const PoolSlotMessage& message);
  Status OnCredit(uint64_t credit);

  // Returns the bytes of all slots that were requested.
  uint64_t PromisedBytes() const;
  // Sets the number of slots and how many of them are busy.
  void Report(uint32_t number, EdgeReport* report) const;

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

  Pool* FindLocked(uint32_t number);
  void SendRequest(uint32_t number, uint32_t slots);

  fabric::Channel* const channel_;
  ReliableNotifier* const notifier_;

  mutable std::mutex mu_;
  uint32_t next_number_ = 1;
  std::map<uint64_t, uint32_t> by_bytes_;
  std::map<uint32_t, Pool> pools_;  // by number
};

}  // namespace rdma_transport
