// Sender-side slots: addresses in the sender's arena, which the receiver maps. A tensor allocated
// there is not moved.
#pragma once

#include <string>

#include "protocol/outstanding_buffers.h"
#include "protocol/static_slots.h"

namespace rdma_transport {

class SenderSlots final : public StaticSlots {
 public:
  // The arguments must outlive it.
  SenderSlots(const LinkContext& context, fabric::Channel* channel, OutstandingBuffers* outstanding)
      : StaticSlots(context, channel), outstanding_(outstanding) {}

  void OnDeclared(const EdgeVariant& variant, uint32_t slots) override;
  void Plan(EdgeVariant* variant, const PlannedEdge& planned) override;
  void Plan(EdgeVariant* variant, const EdgePlan& plan) override;
  bool Send(const std::string& key, EdgeVariant* variant, Outgoing* tensor,
            SendOutcome* outcome) override;
  uint64_t PromisedBytes() const override { return context_.slots->PromisedBytes(); }
  void Report(const EdgeVariant& variant, EdgeReport* report) const override {
    report->slots = variant.slots.size();
  }

 private:
  using Slot = EdgeVariant::Slot;

  Slot* SlotFor(EdgeVariant* variant, const Outgoing& tensor, const fabric::RemoteSpan& span,
                bool receiver_owned);
  Slot* Adopt(EdgeVariant* variant, const char* data, const fabric::RemoteSpan& span,
              bool receiver_owned);
  void AdoptBlocks(EdgeVariant* variant, const memory::SlotPool& pool) override;
  void FollowToSite(EdgeVariant* variant, const Outgoing& tensor);

  OutstandingBuffers* const outstanding_;
};

}  // namespace rdma_transport
