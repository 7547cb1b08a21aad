#include "fabric/libfabric/inbox.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rdma_transport::fabric::libfabric {

Status Inbox::Take(const MessageHeader& header, std::string_view bytes, Nanos now,
                   const Handle& handle) {
  if (header.sequence <= read_ || header.sequence > read_ + frames_) {
    return Status(Code::kDataLoss, "a message at an impossible place of its stream");
  }
  if (header.sequence == read_ + 1 && header.writes <= arrived()) {
    ++read_;
    waiting_since_ = now;
    RDMA_RETURN_IF_ERROR(Feed(bytes, handle));
    return ReadHeld(now, handle);
  }
  if (waiting_since() == 0) waiting_since_ = now;
  const bool fresh = held_.emplace(header.sequence, Held{header.writes, std::string(bytes)}).second;
  return fresh ? OkStatus() : Status(Code::kDataLoss, "a message came twice");
}

Status Inbox::Expect(uint64_t sequence, Nanos now) {
  if (sequence > read_ && sequence - read_ > frames_) {
    return Status(Code::kDataLoss, "a message at an impossible place of its stream");
  }
  if (waiting_since() == 0) waiting_since_ = now;
  expected_ = std::max(expected_, sequence);
  return OkStatus();
}

Status Inbox::TakeWrite(uint16_t sequence, Nanos now, const Handle& handle) {
  const auto distance =
      static_cast<uint16_t>(sequence - static_cast<uint16_t>((arrived() + 1) & 0xffff));
  if (distance > kMaxUnconfirmedWrites || !writes_.Add(arrived() + 1 + distance)) {
    return Status(Code::kDataLoss, "a write at an impossible place among its channel's");
  }
  return held_.empty() ? OkStatus() : ReadHeld(now, handle);
}

Status Inbox::ReadHeld(Nanos now, const Handle& handle) {
  while (!held_.empty()) {
    const auto first = held_.begin();
    if (first->first != read_ + 1 || first->second.writes > arrived()) break;
    const std::string bytes = std::move(first->second.bytes);
    held_.erase(first);
    ++read_;
    waiting_since_ = now;
    RDMA_RETURN_IF_ERROR(Feed(bytes, handle));
  }
  return OkStatus();
}

Status Inbox::Feed(std::string_view bytes, const Handle& handle) {
  while (!bytes.empty()) {
    RecordHeader header;
    if (bytes.size() < sizeof(header)) return Status(Code::kDataLoss, "a record that is cut off");
    std::memcpy(&header, bytes.data(), sizeof(header));
    bytes.remove_prefix(sizeof(header));
    if (bytes.size() < header.length) return Status(Code::kDataLoss, "a record that is cut off");
    std::string_view record = bytes.substr(0, header.length);
    bytes.remove_prefix(header.length);
    if (header.kind == RecordKind::kPart) {
      RDMA_RETURN_IF_ERROR(parts_.Keep(record));
      continue;
    }
    RDMA_RETURN_IF_ERROR(parts_.Complete(record, &record));
    RDMA_RETURN_IF_ERROR(handle(header.kind, record));
  }
  return OkStatus();
}

}  // namespace rdma_transport::fabric::libfabric
