#include "fabric/verbs/outbox.h"

#include <algorithm>
#include <iterator>

#include "base/parts.h"

namespace rdma_transport::fabric::verbs {

Status Outbox::Attach(Adapter* adapter, const ChannelAddress& peer,
                      const ChannelAddress::Port& port) {
  adapter_ = adapter;
  limit_ = peer.ring_limit;
  RDMA_RETURN_IF_ERROR(AttachRing(port.ring_address, port.ring_rkey, peer.ring_size, &ring_));
  writer_.Attach(ring_.mirror->address(), peer.ring_size, peer.most_batches);
  return OkStatus();
}

Status Outbox::AttachRing(uint64_t address, uint32_t rkey, uint64_t size, Ring* ring) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteRead, nullptr, &ring->mirror));
  RDMA_RETURN_IF_ERROR(adapter_->Register(ring->mirror->address(), size, 0, &ring->registration));
  ring->address = address;
  ring->rkey = rkey;
  return OkStatus();
}

Status Outbox::Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled) {
  const size_t length = TotalLength(parts, count);
  RDMA_RETURN_IF_ERROR(Fits(length));
  if (waiting_.empty() && Append(kind, parts, count, length, number, signaled)) return OkStatus();
  return Keep(kind, parts, count, length, number, signaled);
}

Status Outbox::Fits(size_t length) const {
  if (length <= RingWriter::LargestRecordOf(limit_)) return OkStatus();
  return Status(Code::kInvalidArgument,
                "a notification of " + std::to_string(length) +
                    " bytes is too long for the peer's ring (RDMA_TRANSPORT_RING)");
}

Status Outbox::TooMuchQueued() {
  return Status(Code::kResourceExhausted, "the peer does not take its notifications");
}

void Outbox::AddRing(const RingRecord& ring) {
  const iovec part = {const_cast<RingRecord*>(&ring), sizeof(ring)};
  if (!Append(RecordKind::kRing, &part, 1, sizeof(ring), 0, /*signaled=*/true)) {
    waiting_.push_front({RecordKind::kRing,
                         std::string(reinterpret_cast<const char*>(&ring), sizeof(ring)), 0, true});
    waiting_bytes_ += sizeof(ring);
  }
  Close();
}

Status Outbox::Keep(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    bool signaled) {
  if (waiting_bytes_ + length + waiting_.size() * sizeof(Waiting) > kWaitingLimit) {
    return TooMuchQueued();
  }
  waiting_bytes_ += length;
  waiting_.push_back({kind, Joined(parts, count), number, signaled});
  RequestRing(length);
  return OkStatus();
}

// The next ring has room for the record, and is four times as large if the peer allows it. A second
// request must not reach the peer before the first batch in the ring of the first one.
void Outbox::RequestRing(size_t record) {
  if (requested_ || next_.mirror != nullptr || old_.mirror != nullptr || writer_.size() >= limit_) {
    return;
  }
  uint64_t size = writer_.size();
  do {
    size = std::min(size * 4, limit_);
  } while (RingWriter::LargestRecordOf(size) < record);
  requested_ = true;
  SendCredit(Immediate::RingRequest(size));
}

Status Outbox::OnRing(const RingRecord& ring) {
  if (!std::exchange(requested_, false) ||
      (ring.size != 0 &&
       (ring.size % kRingGranule != 0 || ring.size <= writer_.size() || ring.size > limit_))) {
    return Status(Code::kDataLoss, "a ring of notifications that was not requested");
  }
  const Status attached = ring.size == 0
                              ? Status(Code::kResourceExhausted, "the peer lacks the memory")
                              : AttachRing(ring.address, ring.rkey, ring.size, &next_);
  if (!attached.ok()) {
    next_ = Ring();
    limit_ = writer_.size();  // what fits there still passes
    for (const Waiting& waiting : waiting_) {
      const size_t length = waiting.bytes.size();
      if (length <= writer_.LargestRecord()) continue;
      Drop();  // so that the reason reaches the peer
      return Status(Code::kResourceExhausted,
                    "no memory for a ring with room for a notification of " +
                        std::to_string(length) + " bytes: " + attached.message());
    }
  }
  Refill();
  return OkStatus();
}

// Returns false if an open batch must leave first.
bool Outbox::MoveToNext() {
  Close();
  if (writer_.HasOpenBatch()) return false;
  old_ = std::exchange(ring_, std::exchange(next_, Ring()));
  writer_.Move(ring_.mirror->address(), ring_.size());
  // The record to come may need a ring that is larger still, which may be requested once a batch in
  // this one was written.
  writer_.Append(RecordKind::kMoved, nullptr, 0, 0);
  writer_.Mark(last_number_, /*signaled=*/true);
  return true;
}

bool Outbox::Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    bool signaled) {
  if (next_.mirror != nullptr && !MoveToNext()) return false;
  if (length > writer_.LargestRecord()) {
    Close();
    return false;
  }
  RingWriter::Room room = writer_.Append(kind, parts, count, length);
  if (room == RingWriter::Room::kCloseFirst) {
    Close();
    if (writer_.HasOpenBatch()) return false;
    room = writer_.Append(kind, parts, count, length);
  }
  if (room != RingWriter::Room::kTaken) return false;
  last_number_ = std::max(last_number_, number);
  const auto delayed = delayed_.find(number);
  if (delayed != delayed_.end()) delayed->second = writer_.tail();
  writer_.Mark(last_number_, signaled);
  return true;
}

void Outbox::Close() {
  Batch batch;
  if (!writer_.Close(&batch)) return;
  Work work;
  work.kind = Work::Kind::kBatch;
  work.local = ring_.mirror->address() + batch.offset;
  work.length = batch.length;
  work.local_end.lkey = ring_.registration->lkey();
  work.remote = ring_.address + batch.offset;
  work.rkey = ring_.rkey;
  work.immediate = batch.immediate;
  work.signaled = batch.signaled;
  work.end = batch.end;
  work.number = batch.last_number;
  push_(work);
}

Work Outbox::Empty(const Immediate& immediate) const {
  Work work;
  work.kind = Work::Kind::kCredit;
  work.remote = ring_.address;
  work.rkey = ring_.rkey;
  work.immediate = immediate.Encode();
  return work;
}

void Outbox::SendCredit(const Immediate& credit) { push_(Empty(credit)); }

Status Outbox::OnCredit(const Immediate& credit) {
  const Status status = writer_.OnCredit(credit);
  Refill();
  Close();
  return status;
}

void Outbox::OnWritten(const Work& batch) {
  writer_.OnWritten(batch.end);
  written_ = std::max(written_, batch.number);
  for (auto it = delayed_.begin(); it != delayed_.end();) {
    it = it->second <= batch.end ? delayed_.erase(it) : std::next(it);
  }
  if (old_.mirror != nullptr && writer_.Moved()) old_ = Ring();
  Refill();
}

uint64_t Outbox::Delivered() const {
  return delayed_.empty() ? written_ : std::min(written_, delayed_.begin()->first - 1);
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
  if (!waiting_.empty()) RequestRing(waiting_.front().bytes.size());
}

void Outbox::Drop() {
  waiting_.clear();
  waiting_bytes_ = 0;
}

}  // namespace rdma_transport::fabric::verbs
