// The slots of the static edges of one link, as their sender uses them. Where the receiver can map
// the sender's memory they are SenderSlots, elsewhere ReceiverSlots.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/link_context.h"
#include "protocol/send_outcome.h"
#include "protocol/static_edge.h"
#include "protocol/tensor.h"
#include "protocol/wire.h"

namespace rdma_transport {

// One shape that an edge carries. The fields needed for each tensor come first.
struct EdgeVariant {
  struct Slot {  // sender-side
    const char* data = nullptr;
    fabric::RemoteSpan span;
    uint64_t used = 0;
    uint32_t generation = 0;
    bool receiver_owned = false;
  };

  uint32_t number = 0;  // 0 if not static
  uint32_t dtype = 0;
  std::vector<int64_t> dims;
  uint64_t bytes = 0;
  Nanos used = 0;        // when a tensor was sent last
  uint32_t tensors = 0;  // until it is static
  bool offered = false;  // until StaticSender::Withdraw()
  bool planned = false;  // by StaticSender::Offer() or by `plan`
  bool joins_pool = false;
  std::weak_ptr<const EdgePlan> plan;
  uint32_t unknown_buffers = 0;  // buffers in a row that became new slots
  uint32_t receiver_pool = 0;    // of receiver-side slots, while the variant is static
  uint64_t clock = 0;
  std::vector<Slot> slots;
  std::vector<std::shared_ptr<memory::SlotPool>> pools;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t staged_bytes = 0;
  std::string site;  // as planned, for display
};

// Thread-safe. Calls with a variant require the lock of its edge.
class StaticSlots {
 public:
  // The arguments must outlive it.
  StaticSlots(const LinkContext& context, fabric::Channel* channel)
      : context_(context), channel_(channel) {}
  virtual ~StaticSlots() = default;

  // The variant is about to be declared to the receiver, with `receiver_pool`.
  virtual void Join(EdgeVariant*) {}
  // It was declared, and needs this many slots.
  virtual void OnDeclared(const EdgeVariant& variant, uint32_t slots) = 0;
  // It is not static any more, or could not be declared.
  virtual void Leave(const EdgeVariant&) {}
  // What is known of the buffers of a variant that is static.
  virtual void Plan(EdgeVariant*, const PlannedEdge&) {}
  virtual void Plan(EdgeVariant*, const EdgePlan&) {}

  // See StaticSender::Send().
  virtual bool Send(const std::string& key, EdgeVariant* variant, Outgoing* tensor,
                    SendOutcome* outcome) = 0;

  // Returns the bytes of all slots, including those that edges were promised.
  virtual uint64_t PromisedBytes() const = 0;
  virtual void Report(const EdgeVariant& variant, EdgeReport* report) const = 0;

 protected:
  // Counts a tensor that must be sent in dynamic mode. Returns false.
  static bool Miss(EdgeVariant* variant, const char* reason);
  // Copies the tensor into a block of a pool for copies of this edge.
  bool StageFor(const std::string& key, EdgeVariant* variant, Outgoing* tensor);
  void AddPool(EdgeVariant* variant, std::string_view site, size_t bytes);
  // The variant's buffers may be any block of this pool.
  virtual void AdoptBlocks(EdgeVariant*, const memory::SlotPool&) {}
  // Notifies the receiver of a tensor in a slot.
  void Announce(StaticMessage message, EdgeVariant* variant, const Outgoing& tensor,
                fabric::After after, SendOutcome* outcome);

  const LinkContext& context_;
  fabric::Channel* const channel_;
};

}  // namespace rdma_transport
