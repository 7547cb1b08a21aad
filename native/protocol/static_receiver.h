// The receiving side of the static edges of one link. Everything that the sender sends is
// validated: a slot outside its memory, or one that was never agreed on, closes the channel.
#pragma once

#include <functional>
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
  // `context` must outlive it. `wake`, which may be called from any thread and late, makes Tick()
  // run.
  StaticReceiver(const LinkContext& context, std::shared_ptr<fabric::Channel> channel,
                 std::shared_ptr<ReliableNotifier> notifier, std::function<void()> wake)
      : context_(context),
        channel_(std::move(channel)),
        notifier_(std::move(notifier)),
        made_(std::make_shared<Made>(std::move(wake))) {}

  Status OnEdge(const TensorMessage& message);
  Status OnSlot(const SlotMessage& message);
  // Provides as many slots as there is memory for, those that need a new slab in Tick(). Without
  // slots, the pool's edges stay dynamic.
  Status OnRequestSlots(uint64_t pool, uint32_t count);
  // Provides the slots whose memory has come.
  Status Tick();
  // Returns a slot in which no tensor will be announced. What was written there has arrived.
  Status OnReturnSlot(uint64_t credit);
  void OnRetire(uint64_t number);
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

  // Memory of slots that another thread has allocated, by pool.
  struct Made {
    explicit Made(std::function<void()> on_slot) : wake(std::move(on_slot)) {}
    const std::function<void()> wake;
    std::mutex mu;
    std::vector<std::pair<uint32_t, SlotMemory>> slots;
  };

  Status JoinPool(uint64_t number, uint64_t bytes);
  static SlotMemory Hold(memory::Arena* arena, char* memory);
  void MakeElsewhere(uint32_t number, uint64_t bytes, uint32_t count) const;
  Status ProvideSlot(uint32_t number, Pool* pool, SlotMemory slot);
  Status TakeFromPool(uint32_t pool, const StaticMessage& message, Delivery* delivery);
  Status TakeFromSource(const Edge& edge, const StaticMessage& message, Arrival* arrival);

  Edge* Find(uint32_t number) {
    const auto found = edges_.find(number);
    return found == edges_.end() ? nullptr : &found->second;
  }

  const LinkContext& context_;
  const std::shared_ptr<fabric::Channel> channel_;
  const std::shared_ptr<ReliableNotifier> notifier_;
  const std::shared_ptr<Made> made_;
  std::unordered_map<uint32_t, Edge> edges_;  // by number
  std::unordered_map<uint32_t, Pool> pools_;  // by number
  size_t described_bytes_ = 0;                // of their keys and shapes
};

}  // namespace rdma_transport
