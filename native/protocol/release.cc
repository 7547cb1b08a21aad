#include "protocol/release.h"

namespace rdma_transport {
namespace {

struct BufferRelease {
  std::shared_ptr<ReliableNotifier> notifier;
  uint64_t buffer_id;
  fabric::Urgency urgency;
  std::shared_ptr<const void> memory;

  ~BufferRelease() {
    ControlMessage message(MessageType::kRelease);
    message.buffer_id = buffer_id;
    notifier->SendControl(message, urgency, fabric::After::Nothing());
  }
  static void Delete(void* release) { delete static_cast<BufferRelease*>(release); }
};

struct SlotReturn {
  std::shared_ptr<ReliableNotifier> notifier;
  uint64_t credit;
  std::shared_ptr<const void> memory;

  ~SlotReturn() {
    ControlMessage message(MessageType::kCredit);
    message.credit = credit;
    notifier->SendControl(message, fabric::Urgency::kLazy, fabric::After::Nothing());
  }
  static void Delete(void* slot) { delete static_cast<SlotReturn*>(slot); }
};

}  // namespace

OwnerRef ReleaseBufferOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t buffer_id,
                             fabric::Urgency urgency, std::shared_ptr<const void> memory) {
  return OwnerRef(new BufferRelease{std::move(notifier), buffer_id, urgency, std::move(memory)},
                  &BufferRelease::Delete);
}

OwnerRef ReturnSlotOnDrop(std::shared_ptr<ReliableNotifier> notifier, uint64_t credit,
                          std::shared_ptr<const void> memory) {
  return OwnerRef(new SlotReturn{std::move(notifier), credit, std::move(memory)},
                  &SlotReturn::Delete);
}

void ReadLater::Send() const {
  ControlMessage message(MessageType::kReadLater);
  message.edge = edge_;
  notifier_->SendControl(message, fabric::Urgency::kLazy, fabric::After::Nothing());
}

}  // namespace rdma_transport
