#include "protocol/reliable_notifier.h"

#include "base/parts.h"

namespace rdma_transport {

void ReliableNotifier::Send(const iovec* parts, int count, fabric::Urgency urgency,
                            fabric::After after) {
  const Status sent = channel_->Notify(parts, count, urgency, nullptr, after);
  if (sent.code() != Code::kResourceExhausted) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    queue_.push_back({Joined(parts, count), urgency, after});
  }
  on_queued_();
}

void ReliableNotifier::SendControl(ControlMessage message, fabric::Urgency urgency,
                                   fabric::After after) {
  const iovec part = {&message, sizeof(message)};
  Send(&part, 1, urgency, after);
}

bool ReliableNotifier::SendQueued() {
  std::lock_guard<std::mutex> lock(mu_);
  while (!queue_.empty()) {
    Queued& front = queue_.front();
    const iovec part = {front.record.data(), front.record.size()};
    const Status sent = channel_->Notify(&part, 1, front.urgency, nullptr, front.after);
    if (sent.code() == Code::kResourceExhausted) return false;
    queue_.pop_front();
  }
  return true;
}

}  // namespace rdma_transport
