#include "protocol/reliable_notifier.h"

#include "protocol/control.h"

namespace rdma_transport {

void ReliableNotifier::Send(const iovec* parts, int count, fabric::Urgency urgency) {
  if (channel_->Notify(parts, count, urgency).code() != Code::kResourceExhausted) return;
  std::string record;
  for (int i = 0; i < count; ++i) {
    record.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    queue_.emplace_back(std::move(record), urgency);
  }
  on_queued_();
}

void ReliableNotifier::SendControl(MessageType type, uint64_t value, fabric::Urgency urgency,
                                   uint32_t generation) {
  ControlMessage message = ControlOf(type, value, generation);
  const iovec part = {&message, sizeof(message)};
  Send(&part, 1, urgency);
}

bool ReliableNotifier::SendQueued() {
  std::lock_guard<std::mutex> lock(mu_);
  while (!queue_.empty()) {
    auto& [record, urgency] = queue_.front();
    const iovec part = {record.data(), record.size()};
    if (channel_->Notify(&part, 1, urgency).code() == Code::kResourceExhausted) return false;
    queue_.pop_front();
  }
  return true;
}

}  // namespace rdma_transport
