#include "protocol/lease.h"

#include <utility>

namespace rdma_transport {
namespace {

struct Lease {
  std::shared_ptr<ReliableNotifier> notifier;
  MessageType type;
  uint64_t value;
  fabric::Urgency urgency;
  std::shared_ptr<const void> memory;

  ~Lease() { notifier->SendControl(type, value, urgency); }
  static void Delete(void* lease) { delete static_cast<Lease*>(lease); }
};

}  // namespace

OwnerRef LeaseBuffer(std::shared_ptr<ReliableNotifier> notifier, uint64_t buffer_id,
                     fabric::Urgency urgency, std::shared_ptr<const void> memory) {
  return OwnerRef(
      new Lease{std::move(notifier), MessageType::kRelease, buffer_id, urgency, std::move(memory)},
      &Lease::Delete);
}

OwnerRef LeaseSlot(std::shared_ptr<ReliableNotifier> notifier, uint64_t credit,
                   std::shared_ptr<const void> memory) {
  return OwnerRef(new Lease{std::move(notifier), MessageType::kCredit, credit,
                            fabric::Urgency::kLazy, std::move(memory)},
                  &Lease::Delete);
}

}  // namespace rdma_transport
