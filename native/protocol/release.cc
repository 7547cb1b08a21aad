#include "protocol/release.h"

#include <utility>

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
  uint32_t edge;
  std::shared_ptr<const void> memory;
  bool read_later = false;

  ~SlotReturn() {
    ControlMessage message(MessageType::kCredit);
    message.credit = credit;
    message.read_edge = read_later ? edge : 0;
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
                          uint32_t edge, std::shared_ptr<const void> memory, bool** read_later) {
  auto* slot = new SlotReturn{std::move(notifier), credit, edge, std::move(memory)};
  *read_later = &slot->read_later;
  return OwnerRef(slot, &SlotReturn::Delete);
}

}  // namespace rdma_transport
