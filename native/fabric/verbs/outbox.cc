#include "fabric/verbs/outbox.h"

#include <algorithm>

#include "base/parts.h"

namespace rdma_transport::fabric::verbs {

Status Outbox::Attach(Adapter* adapter, const ChannelAddress& peer) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, peer.ring_size, Access::kRemoteRead, nullptr, &mirror_));
  RDMA_RETURN_IF_ERROR(adapter->Register(mirror_->address(), peer.ring_size, 0, &registration_));
  ring_ = peer.ring_address;
  ring_key_ = peer.ring_rkey;
  writer_.Attach(mirror_->address(), peer.ring_size, peer.most_batches);
  return OkStatus();
}

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled) {
  const size_t length = TotalLength(parts, count);
  RDMA_RETURN_IF_ERROR(host::CheckNotification(length));
  const size_t largest = writer_.LargestRecord();
  const bool fits = length <= largest;
  if (fits && waiting_.empty() && Append(kind, parts, count, length, number, signaled)) {
    return OkStatus();
  }
  RDMA_RETURN_IF_ERROR(CheckQueue(length, waiting_bytes_ + waiting_.size() * sizeof(Waiting)));
  std::string bytes = Joined(parts, count);
  size_t done = 0;
  for (; length - done > largest; done += largest) {
    Keep(RecordKind::kPart, bytes.substr(done, largest), 0, /*signaled=*/false);
  }
  if (done > 0) bytes.erase(0, done);
  Keep(kind, std::move(bytes), number, signaled);
  if (!fits) Refill();
  return OkStatus();
}

void Outbox::Keep(RecordKind kind, std::string bytes, uint64_t number, bool signaled) {
  waiting_bytes_ += bytes.size();
  waiting_.push_back({kind, std::move(bytes), number, signaled});
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
  last_number_ = std::max(last_number_, number);
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
  work.remote = ring_ + batch.offset;
  work.rkey = ring_key_;
  work.immediate = batch.immediate;
  work.signaled = batch.signaled;
  work.end = batch.end;
  work.number = batch.last_number;
  push_(work);
}

void Outbox::SendCredit(const Immediate& credit) {
  Work work;
  work.kind = Work::Kind::kCredit;
  work.remote = ring_;
  work.rkey = ring_key_;
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
  written_ = std::max(written_, batch.number);
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
