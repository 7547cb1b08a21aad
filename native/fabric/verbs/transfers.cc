#include "fabric/verbs/transfers.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace rdma_transport::fabric::verbs {

Status Transfers::Learn(std::string_view bytes) {
  RegionRecord record;
  if (bytes.size() != sizeof(record)) {
    return Status(Code::kDataLoss, "a malformed description of a region");
  }
  std::memcpy(&record, bytes.data(), sizeof(record));
  if (regions_.size() >= kMaxRegions && regions_.count(record.key) == 0) {
    return Status(Code::kResourceExhausted, "the peer announces more than " +
                                                std::to_string(kMaxRegions) + " memory regions");
  }
  regions_[record.key] = record;
  return OkStatus();
}

Status Transfers::Aim(const RemoteSpan& span, Work::Kind kind, const RegionRecord** region) const {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || span.offset > found->second.length ||
      span.length > found->second.length - span.offset) {
    return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  }
  if (kind == Work::Kind::kWrite && found->second.writable == 0) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
  }
  *region = &found->second;
  return OkStatus();
}

void Transfers::Push(Work work, const RemoteSpan& span, const RegionRecord& region, uint64_t chunk,
                     QueuePair* pair, const Registration* proof) {
  if (work.kind == Work::Kind::kRead || span.length == 0) proof = nullptr;
  work.remote = region.address + span.offset;
  work.rkey = region.rkey;
  uint64_t rest = span.length;
  do {
    work.length = static_cast<uint32_t>(std::min(chunk, rest));
    rest -= work.length;
    work.last = rest == 0 && proof == nullptr;
    pair->Push(work);
    work.local += work.length;
    work.remote += work.length;
  } while (rest > 0);
  if (proof == nullptr) return;
  work.kind = Work::Kind::kRead;
  work.length = 1;
  work.last = true;
  --work.remote;
  work.local = proof->address();
  work.local_end = {proof->lkey(), proof->shift()};
  pair->Push(work);
}

}  // namespace rdma_transport::fabric::verbs
