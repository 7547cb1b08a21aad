#include "fabric/verbs/ring.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

// Both ends rely on this: the receiver returns a credit after consuming this many bytes. A credit
// thus covers a quarter of the receives or of the ring, so at most 8 credits are in flight.
uint64_t CreditBytes(uint64_t ring) { return ring / 4; }

}  // namespace

void RingWriter::Attach(char* mirror, uint64_t size, uint32_t most_batches) {
  mirror_ = mirror;
  size_ = size;
  most_batches_ = most_batches;
}

RingWriter::Room RingWriter::Append(RecordKind kind, const iovec* parts, int count, size_t length) {
  const uint64_t needed = RoundUp(sizeof(RecordHeader) + length, 8);
  uint64_t start = tail_;
  if (open_) {
    start = batch_.end;
    const uint64_t grown = RoundUp(start + needed, kUnit);
    if (grown - batch_.offset > kMaxUnits * kUnit ||
        batch_.offset % size_ + (grown - batch_.offset) > size_) {
      return Room::kCloseFirst;
    }
    if (grown - FirstUsed() > size_) return Room::kFull;
  } else {
    const uint64_t length_in_ring = RoundUp(needed, kUnit);
    const bool wraps = start % size_ + length_in_ring > size_;
    if (wraps) start = RoundUp(start, size_);
    if (start + length_in_ring - FirstUsed() > size_) return Room::kFull;
    open_ = true;
    wrapped_ = wraps;
    batch_ = Batch();
    batch_.offset = start;  // a position until the batch is closed
    batch_.end = start;
  }
  char* out = mirror_ + start % size_;
  const RecordHeader header = {static_cast<uint32_t>(length), kind};
  std::memcpy(out, &header, sizeof(header));
  out += sizeof(header);
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len > 0) std::memcpy(out, parts[i].iov_base, parts[i].iov_len);
    out += parts[i].iov_len;
  }
  batch_.end = start + needed;
  tail_ = RoundUp(batch_.end, kUnit);
  return Room::kTaken;
}

void RingWriter::Mark(uint64_t number, bool signaled) {
  batch_.last_number = number;
  batch_.signaled |= signaled;
}

bool RingWriter::Close(Batch* batch) {
  if (!open_ || batches_sent_ - batches_granted_ >= most_batches_) return false;
  if (batch_.end != tail_) {
    const uint32_t mark = kNoMoreRecords;
    std::memcpy(mirror_ + batch_.end % size_, &mark, sizeof(mark));
  }
  *batch = batch_;
  batch->offset = batch_.offset % size_;
  batch->length = static_cast<uint32_t>(tail_ - batch_.offset);
  batch->end = tail_;
  Immediate immediate;
  immediate.wrapped = wrapped_;
  immediate.units = static_cast<uint32_t>(batch->length / kUnit);
  batch->immediate = immediate.Encode();
  ++batches_sent_;
  open_ = false;
  return true;
}

Status RingWriter::OnCredit(const Immediate& credit) {
  granted_ += uint64_t{credit.units} * kUnit;
  batches_granted_ += credit.batches;
  if (granted_ > tail_ || batches_granted_ > batches_sent_) {
    return Status(Code::kDataLoss, "the peer gave more room back than it had been sent");
  }
  return OkStatus();
}

void RingReader::Attach(const char* ring, uint64_t size, uint32_t most_batches) {
  ring_ = ring;
  size_ = size;
  most_batches_ = most_batches;
}

Status RingReader::Begin(const Immediate& batch) {
  if (batch.wrapped) head_ = RoundUp(head_, size_);
  const uint64_t length = uint64_t{batch.units} * kUnit;
  if (length == 0 || head_ % size_ + length > size_) {
    return Status(Code::kDataLoss, "a batch of notifications of an impossible length");
  }
  record_ = ring_ + head_ % size_;
  end_ = record_ + length;
  head_ += length;
  ++batches_;
  return OkStatus();
}

Status RingReader::Next(RecordKind* kind, std::string_view* record, bool* more) {
  *more = false;
  if (static_cast<size_t>(end_ - record_) < sizeof(RecordHeader)) return OkStatus();
  RecordHeader header;
  std::memcpy(&header, record_, sizeof(header));
  if (header.length == kNoMoreRecords) return OkStatus();
  record_ += sizeof(header);
  if (header.length > static_cast<size_t>(end_ - record_)) {
    return Status(Code::kDataLoss, "a notification longer than its batch");
  }
  *kind = header.kind;
  *record = std::string_view(record_, header.length);
  *more = true;
  record_ += std::min<size_t>(RoundUp(header.length, 8), end_ - record_);
  return OkStatus();
}

bool RingReader::TakeCredit(Immediate* credit) {
  if (head_ - credited_ < CreditBytes(size_) && batches_ < std::max(most_batches_ / 4, 1u)) {
    return false;
  }
  // Bytes skipped by a wrap may exceed what an immediate value can carry. The next credit has the
  // rest.
  const uint64_t units = std::min((head_ - credited_) / kUnit, kMaxUnits);
  credit->credit = true;
  credit->wrapped = false;
  credit->units = static_cast<uint32_t>(units);
  credit->batches = batches_;
  credited_ += units * kUnit;
  batches_ = 0;
  return true;
}

}  // namespace rdma_transport::fabric::verbs
