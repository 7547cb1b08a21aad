#include "fabric/verbs/outbox.h"

#include <algorithm>
#include <iterator>

#include "base/parts.h"

namespace rdma_transport::fabric::verbs {

Status Outbox::Attach(Adapter* adapter, const ChannelAddress& peer, const Ends& ends,
                      size_t index) {
  adapter_ = adapter;
  index_ = index;
  limit_ = peer.ring_limit;
  RDMA_RETURN_IF_ERROR(AttachRing(ends, peer.ring_size, &ring_));
  writer_.Attach(ring_.mirror->address(), peer.ring_size, peer.most_batches);
  return OkStatus();
}

bool Outbox::Reaches(size_t index) const {
  return ring_.Reached(index) && next_.Reached(index) && old_.Reached(index);
}

Status Outbox::MoveTo(Adapter* adapter, size_t index) {
  if (!Reaches(index)) {
    return Status(Code::kUnavailable, "the peer's ring is not reached through " + adapter->Name());
  }
  for (Ring* ring : {&ring_, &next_, &old_}) {
    if (ring->mirror == nullptr) continue;
    RDMA_RETURN_IF_ERROR(
        adapter->Register(ring->mirror->address(), ring->size(), 0, &ring->registration));
  }
  adapter_ = adapter;
  index_ = index;
  return OkStatus();
}

void Outbox::Retarget(Work* work) const {
  if (work->kind == Work::Kind::kCredit) {
    work->remote = ring_.ends[index_].address;
    work->rkey = ring_.ends[index_].rkey;
    return;
  }
  const auto within = [work](const Ring& ring) {
    return ring.mirror != nullptr && work->local >= ring.mirror->address() &&
           work->local < ring.mirror->address() + ring.size();
  };
  const Ring& ring = within(old_) ? old_ : ring_;
  work->local_end.lkey = ring.registration->lkey();
  work->remote =
      ring.ends[index_].address + static_cast<uint64_t>(work->local - ring.mirror->address());
  work->rkey = ring.ends[index_].rkey;
}

void Outbox::OnRingEnd(uint64_t size, size_t index, const RegionEnd& end) {
  for (Ring* ring : {&ring_, &next_, &old_}) {
    if (ring->size() == size) ring->ends[index] = end;
  }
}

void Outbox::ForgetPair(size_t index) {
  for (Ring* ring : {&ring_, &next_, &old_}) ring->ends[index] = {};
}

Status Outbox::AttachRing(const Ends& ends, uint64_t size, Ring* ring) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteRead, nullptr, &ring->mirror));
  RDMA_RETURN_IF_ERROR(adapter_->Register(ring->mirror->address(), size, 0, &ring->registration));
  ring->ends = ends;
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

void Outbox::AddRing(std::string record) {
  const iovec part = {record.data(), record.size()};
  if (!Append(RecordKind::kRing, &part, 1, record.size(), 0, /*signaled=*/true)) {
    waiting_bytes_ += record.size();
    waiting_.push_front({RecordKind::kRing, std::move(record), 0, true});
  }
  Close();
}

Status Outbox::Keep(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
                    bool signaled) {
  RDMA_RETURN_IF_ERROR(CheckQueue(length, waiting_bytes_ + waiting_.size() * sizeof(Waiting)));
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

Status Outbox::OnRing(uint64_t size, const Ends& ends) {
  if (!std::exchange(requested_, false) ||
      (size != 0 && (size % kRingGranule != 0 || size <= writer_.size() || size > limit_))) {
    return Status(Code::kDataLoss, "a ring of notifications that was not requested");
  }
  const bool refused = size == 0 || ends[index_].usable == 0;
  const Status attached = refused ? Status(Code::kResourceExhausted, "the peer lacks the memory")
                                  : AttachRing(ends, size, &next_);
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
  work.remote = ring_.ends[index_].address + batch.offset;
  work.rkey = ring_.ends[index_].rkey;
  work.immediate = batch.immediate;
  work.signaled = batch.signaled;
  work.end = batch.end;
  work.number = batch.last_number;
  push_(work);
}

Work Outbox::Empty(const Immediate& immediate) const {
  Work work;
  work.kind = Work::Kind::kCredit;
  work.remote = ring_.ends[index_].address;
  work.rkey = ring_.ends[index_].rkey;
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
