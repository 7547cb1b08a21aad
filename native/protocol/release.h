// A consumer's references to a peer's buffer or to a receiver-side slot. When the consumer drops
// one, the peer is notified and may use the memory again.
#pragma once

#include <cstdint>
#include <memory>

#include "base/owner_ref.h"
#include "protocol/reliable_notifier.h"

namespace rdma_transport {

// Dropping it releases the outstanding buffer `buffer_id`. Keeps `memory`, its mapping, until then.
OwnerRef ReleaseBufferOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t buffer_id,
                             fabric::Urgency urgency, std::shared_ptr<const void> memory);

// Dropping it returns the slot of the credit. Keeps `memory`, the slot, until then. Sets
// `read_later` to a flag, valid until then: if it is true, the credit asks the sender not to write
// later tensors of `edge` to slots.
OwnerRef ReturnSlotOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t credit,
                          uint32_t edge, std::shared_ptr<const void> memory, bool** read_later);

}  // namespace rdma_transport
