#include "fabric/libfabric/outbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/parts.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t Room() { return Domain::frame_bytes() - sizeof(MessageHeader); }

}  // namespace

// A record may take half of the messages, so that another one always finds room some time.
Status Outbox::CheckLength(size_t length) const {
  if (length + sizeof(RecordHeader) <= frames_ / 2 * Room()) return OkStatus();
  return Status(Code::kInvalidArgument,
                "a notification of " + std::to_string(length) +
                    " bytes is too long for the peer (RDMA_TRANSPORT_RING)");
}

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number,
                   uint64_t writes) {
  const size_t length = TotalLength(parts, count);
  RDMA_RETURN_IF_ERROR(CheckLength(length));
  if (waiting_.empty() && Fits(length) && Append(kind, parts, count, length, number, writes)) {
    return OkStatus();
  }
  RDMA_RETURN_IF_ERROR(CheckQueue(length, waiting_bytes_ + waiting_.size() * sizeof(Waiting)));
  waiting_bytes_ += length;
  waiting_.push_back({kind, Joined(parts, count), number, writes});
  return OkStatus();
}

bool Outbox::Fits(size_t length) const {
  const size_t left = HasOpen() ? Domain::frame_bytes() - open_.length : 0;
  const size_t needed = length + sizeof(RecordHeader);
  const size_t more = needed <= left ? 0 : (needed - left + Room() - 1) / Room();
  return Unread() + more <= frames_;
}

// Returns false, and has added nothing, if there is no memory for a message.
bool Outbox::Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    uint64_t writes) {
  // A record that spans messages needs all of them, so they are taken first.
  std::deque<Frame> spare;
  const size_t left = HasOpen() ? Domain::frame_bytes() - open_.length : 0;
  for (size_t room = left; room < length + sizeof(RecordHeader); room += Room()) {
    Frame frame;
    if (!domain_->TakeFrame(&frame)) {
      for (const Frame& unused : spare) domain_->ReturnFrame(unused);
      return false;
    }
    spare.push_back(frame);
  }
  const RecordHeader header = {static_cast<uint32_t>(length), kind};
  const auto copy = [&](const void* bytes, size_t size) {
    const char* from = static_cast<const char*>(bytes);
    while (size > 0) {
      if (open_.length == Domain::frame_bytes()) Close();
      if (!HasOpen()) {
        open_.frame = spare.front();
        open_.length = sizeof(MessageHeader);
        spare.pop_front();
      }
      const size_t piece = std::min(size, Domain::frame_bytes() - open_.length);
      std::memcpy(open_.frame.data + open_.length, from, piece);
      open_.length += piece;
      open_.after = writes;
      from += piece;
      size -= piece;
    }
  };
  copy(&header, sizeof(header));
  for (int i = 0; i < count; ++i) copy(parts[i].iov_base, parts[i].iov_len);
  last_number_ = std::max(last_number_, number);
  const auto delayed = delayed_.find(number);
  if (delayed != delayed_.end()) delayed->second = last_sequence_ + 1;  // that of the open message
  return true;
}

void Outbox::Close() {
  if (!HasOpen()) return;
  open_.sequence = ++last_sequence_;
  sent_.push_back({open_.sequence, last_number_});
  closed_.push_back(open_);
  open_ = OutgoingMessage();
}

bool Outbox::OnConfirmed(uint64_t sequence) {
  if (sequence > last_sequence_) return false;
  while (!sent_.empty() && sent_.front().sequence <= sequence) {
    delivered_ = sent_.front().number;
    sent_.pop_front();
  }
  for (auto it = delayed_.begin(); it != delayed_.end();) {
    it = it->second <= sequence ? delayed_.erase(it) : std::next(it);
  }
  Retry();
  return true;
}

void Outbox::Retry() {
  bool moved = false;
  while (!waiting_.empty()) {
    Waiting& front = waiting_.front();
    const iovec part = {front.bytes.data(), front.bytes.size()};
    if (!Fits(front.bytes.size()) ||
        !Append(front.kind, &part, 1, front.bytes.size(), front.number, front.writes)) {
      break;
    }
    waiting_bytes_ -= front.bytes.size();
    waiting_.pop_front();
    moved = true;
  }
  if (moved) Close();
}

Backlog Outbox::backlog() const {
  return {frames_ * Domain::frame_bytes(), Unread() * Domain::frame_bytes(), waiting_bytes_};
}

void Outbox::Drop() {
  for (const OutgoingMessage& message : closed_) domain_->ReturnFrame(message.frame);
  closed_.clear();
  if (HasOpen()) domain_->ReturnFrame(open_.frame);
  open_ = OutgoingMessage();
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace rdma_transport::fabric::libfabric
