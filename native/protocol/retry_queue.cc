#include "protocol/retry_queue.h"

namespace rdma_transport {

bool RetryQueue::Send(fabric::Channel* channel, const iovec* parts, int count,
                      fabric::Urgency urgency) {
  // A lost peer needs no notification, and the pending receives on it fail anyway.
  if (channel->Notify(parts, count, urgency).code() != Code::kResourceExhausted) return true;
  std::string record;
  for (int i = 0; i < count; ++i) {
    record.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  std::lock_guard<std::mutex> lock(mu_);
  records_.emplace_back(std::move(record), urgency);
  return false;
}

bool RetryQueue::SendSome(fabric::Channel* channel) {
  std::lock_guard<std::mutex> lock(mu_);
  while (!records_.empty()) {
    auto& [record, urgency] = records_.front();
    const iovec part = {record.data(), record.size()};
    if (channel->Notify(&part, 1, urgency).code() == Code::kResourceExhausted) return false;
    records_.pop_front();
  }
  return true;
}

}  // namespace rdma_transport
