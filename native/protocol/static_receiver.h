// The receiving side of the static edges of one link. Everything that the sender sends is
// validated: a slot outside its memory, or one that was never agreed on, closes the channel.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/link_context.h"
#include "protocol/mailbox.h"
#include "protocol/reliable_notifier.h"
#include "protocol/static_edge.h"
#include "protocol/wire.h"

namespace rdma_transport {

// Polling thread only. A DataLoss status means a protocol violation.
class StaticReceiver {
 public:
  // `context` must outlive it.
  StaticReceiver(const LinkContext& context, std::shared_ptr<fabric::Channel> channel,
                 std::shared_ptr<ReliableNotifier> notifier)
      : context_(context), channel_(std::move(channel)), notifier_(std::move(notifier)) {}

  Status OnEdge(const TensorMessage& message);
  Status OnSlot(const SlotMessage& message);
  // Provides as many slots as there is memory for, from another thread those that need a new slab.
  // Without slots, the pool's edges stay dynamic. `link` owns this.
  Status OnRequestSlots(uint32_t pool, uint32_t count, std::shared_ptr<const void> link);
  // Returns a slot in which no tensor will be announced. What was written there has arrived.
  Status OnReturnSlot(uint64_t credit);
  void OnRetire(uint32_t number);
  // Sets the tensor that the notification announces, and its key.
  Status OnStatic(const StaticMessage& message, std::string_view suffix, Arrival* arrival,
                  KeyId* key);
  // The link has ended: unmaps the sender's memory, but keeps the slots that the sender writes
  // into.
  void Abandon();
  // Returns whether there are slots here that the sender writes into.
  bool HasReceiverSlots() const;
  // The edge's key without frame-and-iteration suffix. Requires that OnStatic() accepted the edge.
  std::string_view NameOf(uint32_t number) const { return edges_.at(number).spec.key; }

 private:
  struct Slot {  // sender-side
    uint32_t generation = 0;
    fabric::RemoteSpan span;
    fabric::MappedSpan mapped;
  };
  using SlotMemory = std::shared_ptr<const void>;  // returns it to the arena
  // Receiver-side slots, which edges of one size share. The sender chooses among them.
  struct Pool {
    uint64_t bytes = 0;
    uint32_t edges = 0;
    std::vector<SlotMemory> slots;
  };
  struct Edge {
    std::vector<Slot> slots;
    uint32_t pool = 0;  // 0: its slots are sender-side
    KeyId key;          // without suffix
    KeyId usual_key;    // with the usual suffix
    EdgeSpec spec;
  };

  Status JoinPool(uint32_t number, uint64_t bytes);
  SlotMemory Hold(char* memory) const;
  void MakeElsewhere(uint32_t number, uint64_t bytes, uint32_t count,
                     std::shared_ptr<const void> link);
  Status ProvideSlotLocked(uint32_t number, Pool* pool, SlotMemory slot);
  Status TakeFromPool(uint32_t pool, const StaticMessage& message, Delivery* delivery);
  Status TakeFromSource(const Edge& edge, const StaticMessage& message, Arrival* arrival);

  Edge* Find(uint32_t number) {
    const auto found = edges_.find(number);
    return found == edges_.end() ? nullptr : &found->second;
  }

  const LinkContext& context_;
  const std::shared_ptr<fabric::Channel> channel_;
  const std::shared_ptr<ReliableNotifier> notifier_;
  std::unordered_map<uint32_t, Edge> edges_;  // by number
  size_t described_bytes_ = 0;                // of their keys and shapes
  mutable std::mutex mu_;                     // guards `pools_`
  std::unordered_map<uint32_t, Pool> pools_;  // by number
};

}  // namespace rdma_transport
