#include "fabric/libfabric/outbox.h"

#include <algorithm>

#include "base/parts.h"
#include "fabric/host/parts.h"
#include "fabric/libfabric/domain.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t kRoom = Domain::frame_bytes() - sizeof(MessageHeader);
constexpr size_t kLargestRecord = kRoom - sizeof(RecordHeader);

}  // namespace

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number,
                   uint64_t writes) {
  const size_t length = TotalLength(parts, count);
  RDMA_RETURN_IF_ERROR(host::CheckNotification(length));
  RDMA_RETURN_IF_ERROR(CheckQueue(length, waiting_bytes_ + waiting_.size() * sizeof(Message)));
  const std::string bytes = Joined(parts, count);
  size_t done = 0;
  for (; length - done > kLargestRecord; done += kLargestRecord) {
    Append(RecordKind::kPart, bytes.data() + done, kLargestRecord, 0, writes);
  }
  Append(kind, bytes.data() + done, length - done, number, writes);
  return OkStatus();
}

void Outbox::Append(RecordKind kind, const char* data, size_t length, uint64_t number,
                    uint64_t writes) {
  const RecordHeader header = {static_cast<uint32_t>(length), kind};
  const size_t whole = sizeof(header) + length;
  if (waiting_.empty() || waiting_.back().records.size() + whole > kRoom) {
    waiting_.emplace_back();
    open_ = true;
  }
  Message& last = waiting_.back();
  last.records.append(reinterpret_cast<const char*>(&header), sizeof(header));
  last.records.append(data, length);
  last.writes = writes;
  if (number != 0) last.number = number;
  waiting_bytes_ += whole;
}

const Outbox::Message* Outbox::Front() const {
  if (Left() == 0 || waiting_.size() <= (open_ ? 1 : 0)) return nullptr;
  return &waiting_.front();
}

void Outbox::Pop() {
  sent_.push_back(waiting_.front().number);
  waiting_bytes_ -= waiting_.front().records.size();
  waiting_.pop_front();
  ++posted_;
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
  const size_t ready = std::min(waiting_.size(), Left());
  const size_t waits = waiting_.empty() ? 0 : waiting_bytes_ / waiting_.size();
  return {frames_ * Domain::frame_bytes(), (sent_.size() + ready) * Domain::frame_bytes(),
          (waiting_.size() - ready) * waits, host::kLongestNotification};
}

void Outbox::Drop() {
  waiting_.clear();
  waiting_bytes_ = 0;
  open_ = false;
}

}  // namespace rdma_transport::fabric::libfabric
