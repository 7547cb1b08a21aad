#include "fabric/libfabric/transfers.h"

#include <algorithm>
#include <string>

namespace rdma_transport::fabric::libfabric {

Status Transfers::Learn(const RegionRecord& region) {
  if (regions_.size() >= kMaxRegions && regions_.count(region.key) == 0) {
    return Status(Code::kResourceExhausted, "the peer announces more than " +
                                                std::to_string(kMaxRegions) + " memory regions");
  }
  regions_[region.key] = region;
  return OkStatus();
}

Status Transfers::Check(const RemoteSpan& span, Access access) const {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || span.offset > found->second.length ||
      span.length > found->second.length - span.offset) {
    return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  }
  if (access == Access::kRemoteReadWrite && found->second.writable == 0) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
  }
  return OkStatus();
}

Status Transfers::Begin(bool write, const RemoteSpan& span, char* local, void* descriptor,
                        uint64_t cookie, uint64_t chunk) {
  RDMA_RETURN_IF_ERROR(Check(span, write ? Access::kRemoteReadWrite : Access::kRemoteRead));
  if (span.length == 0) {
    Refuse(cookie, OkStatus());  // there is nothing to move
    return OkStatus();
  }
  const RegionRecord& region = regions_[span.key];
  const uint64_t id = ++last_transfer_;
  transfers_[id] = {cookie, (span.length + chunk - 1) / chunk};
  for (uint64_t done = 0; done < span.length;) {
    Piece piece;
    piece.write = write;
    piece.local = local + done;
    piece.descriptor = descriptor;
    piece.length = std::min(chunk, span.length - done);
    piece.address = region.base + span.offset + done;
    piece.key = region.remote_key;
    piece.transfer = id;
    (write ? writes_ : reads_).push_back(piece);
    done += piece.length;
  }
  return OkStatus();
}

void Transfers::PopWrite() {
  unfinished_.insert(++started_);
  writes_.pop_front();
}

void Transfers::OnEnded(uint64_t transfer, uint64_t sequence) {
  if (sequence != 0 && unfinished_.erase(sequence) == 0) return;
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end() || --found->second.left > 0) return;
  ended_.push_back({found->second.cookie, OkStatus()});
  transfers_.erase(found);
}

}  // namespace rdma_transport::fabric::libfabric
