#include "fabric/verbs/outbox.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Limit on bytes queued for the peer's ring. Records are refused beyond it.
constexpr size_t kWaitingLimit = size_t{256} << 20;

size_t TotalLength(const iovec* parts, int count) {
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += parts[i].iov_len;
  return length;
}

}  // namespace

Status Outbox::Attach(Adapter* adapter, const ChannelAddress& peer) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, peer.ring_size, Access::kRemoteRead, nullptr, &mirror_));
  RDMA_RETURN_IF_ERROR(adapter->Register(mirror_->address(), mirror_->length(), 0, &registration_));
  writer_.Attach(mirror_->address(), peer.ring_size, peer.most_batches);
  peer_ring_ = peer.ring_address;
  peer_rkey_ = peer.ring_rkey;
  return OkStatus();
}

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled) {
  const size_t length = TotalLength(parts, count);
  if (length > writer_.LargestRecord()) {
    return Status(Code::kInvalidArgument,
                  "a notification of " + std::to_string(length) +
                      " bytes is too long for the peer's ring (RDMA_TRANSPORT_RING)");
  }
  if (waiting_.empty() && Append(kind, parts, count, length, number, signaled)) return OkStatus();
  return Keep(kind, parts, count, length, number, signaled);
}

Status Outbox::Keep(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    bool signaled) {
  if (waiting_bytes_ + length + waiting_.size() * sizeof(Waiting) > kWaitingLimit) {
    return Status(Code::kResourceExhausted, "the peer does not take its notifications");
  }
  Waiting waiting = {kind, std::string(), number, signaled};
  waiting.bytes.reserve(length);
  for (int i = 0; i < count; ++i) {
    waiting.bytes.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  }
  waiting_bytes_ += length;
  waiting_.push_back(std::move(waiting));
  return OkStatus();
}

bool Outbox::Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    bool signaled) {
  RingWriter::Room room = writer_.Append(kind, parts, count, length);
  if (room == RingWriter::Room::kCloseFirst) {
    Close();
    if (writer_.HasOpenBatch()) return false;
    room = writer_.Append(kind, parts, count, length);
  }
  if (room != RingWriter::Room::kTaken) return false;
  if (number != 0) last_number_ = number;
  writer_.Mark(last_number_, signaled);
  return true;
}

void Outbox::Close() {
  Batch batch;
  if (!writer_.Close(&batch)) return;
  Work work;
  work.kind = Work::Kind::kBatch;
  work.local = mirror_->address() + batch.offset;
  work.length = batch.length;
  work.local_end.lkey = registration_->lkey();
  work.remote = peer_ring_ + batch.offset;
  work.rkey = peer_rkey_;
  work.immediate = batch.immediate;
  work.signaled = batch.signaled;
  work.end = batch.end;
  work.number = batch.last_number;
  push_(work);
}

void Outbox::SendCredit(const Immediate& credit) {
  Work work;
  work.kind = Work::Kind::kCredit;
  work.remote = peer_ring_;
  work.rkey = peer_rkey_;
  work.immediate = credit.Encode();
  push_(work);
}

Status Outbox::OnCredit(const Immediate& credit) {
  const Status status = writer_.OnCredit(credit);
  Refill();
  Close();
  return status;
}

void Outbox::OnWritten(const Work& batch) {
  writer_.OnWritten(batch.end);
  Refill();
}

void Outbox::Refill() {
  bool moved = false;
  while (!waiting_.empty()) {
    Waiting& front = waiting_.front();
    const iovec part = {front.bytes.data(), front.bytes.size()};
    if (!Append(front.kind, &part, 1, front.bytes.size(), front.number, front.signaled)) break;
    waiting_bytes_ -= front.bytes.size();
    waiting_.pop_front();
    moved = true;
  }
  if (moved) Close();
}

void Outbox::Drop() {
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace rdma_transport::fabric::verbs
