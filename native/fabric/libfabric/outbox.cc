#include "fabric/libfabric/outbox.h"

#include <algorithm>

#include "base/parts.h"
#include "fabric/libfabric/domain.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t kRoom = Domain::frame_bytes() - sizeof(MessageHeader);
constexpr size_t kMaxGone = size_t{1} << 20;

}  // namespace

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number,
                   uint64_t writes) {
  const size_t length = TotalLength(parts, count);
  // It may take half of the messages, so that another one always finds room some time.
  if (length > backlog().longest) {
    return Status(Code::kInvalidArgument,
                  "a notification of " + std::to_string(length) +
                      " bytes is too long for the peer (RDMA_TRANSPORT_RING)");
  }
  RDMA_RETURN_IF_ERROR(CheckQueue(length, Unsent() + records_.size() * sizeof(Record)));
  const RecordHeader header = {static_cast<uint32_t>(length), kind};
  bytes_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  for (int i = 0; i < count; ++i) {
    bytes_.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  records_.push_back({position_ + Unsent(), number, writes});
  return OkStatus();
}

std::string_view Outbox::Front() const {
  if (sent_.size() >= frames_) return {};
  const size_t length = Unsent() >= kRoom ? kRoom : closed_;
  return std::string_view(bytes_).substr(gone_, length);
}

uint64_t Outbox::FrontAfter() const {
  const uint64_t end = position_ + Front().size();
  uint64_t after = 0;
  for (auto record = records_.begin(); record != records_.end() && record->end <= end; ++record) {
    after = record->writes;
  }
  return after;
}

void Outbox::Pop() {
  const size_t length = Front().size();
  gone_ += length;
  position_ += length;
  closed_ -= std::min(closed_, length);
  uint64_t number = 0;
  for (; !records_.empty() && records_.front().end <= position_; records_.pop_front()) {
    if (records_.front().number != 0) number = records_.front().number;
  }
  sent_.push_back(number);
  ++posted_;
  if (gone_ < bytes_.size() && (gone_ < kMaxGone || gone_ < bytes_.size() / 2)) return;
  bytes_.erase(0, gone_);
  gone_ = 0;
  if (bytes_.capacity() > 2 * bytes_.size() + kMaxGone) bytes_.shrink_to_fit();
}

bool Outbox::OnConfirmed(uint64_t sequence) {
  if (sequence > posted_) return false;
  while (!sent_.empty() && first_unconfirmed() <= sequence) {
    if (sent_.front() != 0) delivered_ = sent_.front();
    sent_.pop_front();
  }
  return true;
}

Backlog Outbox::backlog() const {
  const uint64_t messages = (Unsent() + kRoom - 1) / kRoom;
  const uint64_t left = frames_ - sent_.size();
  const uint64_t waiting = messages > left ? Unsent() - left * kRoom : 0;
  const uint64_t used = sent_.size() + std::min(messages, left);
  const uint64_t longest = frames_ / 2 * kRoom;
  return {frames_ * Domain::frame_bytes(), used * Domain::frame_bytes(), waiting,
          longest - std::min(longest, sizeof(RecordHeader))};
}

void Outbox::Drop() {
  bytes_.clear();
  gone_ = closed_ = 0;
  records_.clear();
}

}  // namespace rdma_transport::fabric::libfabric
