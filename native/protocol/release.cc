#include "protocol/release.h"

#include <utility>

namespace rdma_transport {
namespace {

struct ReleaseNotice {
  std::shared_ptr<ReliableNotifier> notifier;
  MessageType type;
  uint64_t value;
  fabric::Urgency urgency;
  std::shared_ptr<const void> memory;

  ~ReleaseNotice() { notifier->SendControl(type, value, urgency, 0, fabric::After::Nothing()); }
  static void Delete(void* notice) { delete static_cast<ReleaseNotice*>(notice); }
};

}  // namespace

OwnerRef ReleaseBufferOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t buffer_id,
                             fabric::Urgency urgency, std::shared_ptr<const void> memory) {
  return OwnerRef(new ReleaseNotice{std::move(notifier), MessageType::kRelease, buffer_id, urgency,
                                    std::move(memory)},
                  &ReleaseNotice::Delete);
}

OwnerRef ReturnSlotOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t credit,
                          std::shared_ptr<const void> memory) {
  return OwnerRef(new ReleaseNotice{std::move(notifier), MessageType::kCredit, credit,
                                    fabric::Urgency::kLazy, std::move(memory)},
                  &ReleaseNotice::Delete);
}

}  // namespace rdma_transport
