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

Status Transfers::Begin(bool write, const RemoteSpan& span, char* local, void* descriptor,
                        uint64_t cookie, uint64_t chunk) {
  const auto found = regions_.find(span.key);
  if (found == regions_.end() || span.offset > found->second.length ||
      span.length > found->second.length - span.offset) {
    return Status(Code::kInvalidArgument, "a one-sided operation outside the peer's memory");
  }
  const RegionRecord& region = found->second;
  if (write && region.writable == 0) {
    return Status(Code::kPermissionDenied, "a write to memory that the peer only lets be read");
  }
  if (span.length == 0) {
    Refuse(cookie, OkStatus());  // there is nothing to move
    return OkStatus();
  }
  const bool large = write && limits_writes_ && span.length > kLargestQuick;
  if (!write && limits_reads_) chunk = std::min(chunk, kReadPiece);
  if (large) chunk = std::min(chunk, kWritePiece);
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
    if (write) piece.ticket = ++begun_;
    (!write ? reads_ : large ? large_ : quick_).push_back(piece);
    done += piece.length;
  }
  return OkStatus();
}

void Transfers::PopWrite() {
  uint64_t& bytes = unfinished_[++started_];
  if (!quick_.empty()) return quick_.pop_front();
  bytes = large_.front().length;
  writing_ += bytes;
  large_.pop_front();
}

uint64_t Transfers::LargeTicketOf(uint64_t cookie) const {
  const auto last = std::find_if(large_.rbegin(), large_.rend(), [&](const Piece& piece) {
    const auto found = transfers_.find(piece.transfer);
    return found != transfers_.end() && found->second.cookie == cookie;
  });
  return last == large_.rend() ? 0 : last->ticket;
}

void Transfers::PopRead() {
  ++reading_;
  reads_.pop_front();
}

void Transfers::OnEnded(uint64_t transfer, uint64_t sequence) {
  if (sequence != 0) {
    const auto piece = unfinished_.find(sequence);
    if (piece == unfinished_.end()) return;
    writing_ -= piece->second;
    unfinished_.erase(piece);
  } else {
    --reading_;
  }
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end() || --found->second.left > 0) return;
  ended_.push_back({found->second.cookie, OkStatus()});
  transfers_.erase(found);
}

}  // namespace rdma_transport::fabric::libfabric
