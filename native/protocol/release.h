// What the consumer of a tensor sends back: when it drops its reference to a peer's buffer or to a
// receiver-side slot, that the peer may use the memory again.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/owner_ref.h"
#include "protocol/reliable_notifier.h"

namespace rdma_transport {

// Dropping it releases the outstanding buffer `buffer_id`. Keeps `memory`, its mapping, until then.
OwnerRef ReleaseBufferOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t buffer_id,
                             fabric::Urgency urgency, std::shared_ptr<const void> memory);

// Dropping it returns the slot of the credit. Keeps `memory`, the slot, until then.
OwnerRef ReturnSlotOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t credit,
                          std::shared_ptr<const void> memory);

// Asks the sender of an edge, if there is one, not to write later tensors to slots.
class ReadLater {
 public:
  ReadLater() = default;
  ReadLater(std::shared_ptr<ReliableNotifier> notifier, uint32_t edge)
      : notifier_(std::move(notifier)), edge_(edge) {}

  explicit operator bool() const { return notifier_ != nullptr; }
  void Send() const;

 private:
  std::shared_ptr<ReliableNotifier> notifier_;
  uint32_t edge_ = 0;
};

}  // namespace rdma_transport
