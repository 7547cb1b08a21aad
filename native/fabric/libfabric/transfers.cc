#include "fabric/libfabric/transfers.h"

#include <algorithm>

namespace rdma_transport::fabric::libfabric {

Status Transfers::Begin(bool write, const RemoteSpan& span, char* local, void* descriptor,
                        uint64_t cookie, uint64_t chunk) {
  const RegionRecord* region = nullptr;
  RDMA_RETURN_IF_ERROR(
      Check(span, write ? Access::kRemoteReadWrite : Access::kRemoteRead, &region));
  if (span.length == 0) {
    End(cookie, OkStatus());  // there is nothing to move
    return OkStatus();
  }
  const uint64_t id = ++last_transfer_;
  transfers_[id] = {cookie, (span.length + chunk - 1) / chunk};
  for (uint64_t done = 0; done < span.length;) {
    Piece piece;
    piece.write = write;
    piece.local = local + done;
    piece.descriptor = descriptor;
    piece.length = std::min(chunk, span.length - done);
    piece.address = region->base + span.offset + done;
    piece.key = region->remote_key;
    piece.transfer = id;
    (write ? writes_ : reads_).push_back(piece);
    done += piece.length;
  }
  return OkStatus();
}

void Transfers::PopWrite() {
  ++started_;
  writes_.pop_front();
}

void Transfers::OnEnded(uint64_t transfer, uint64_t sequence) {
  if (sequence != 0 && !finished_.Add(sequence)) return;
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end() || --found->second.left > 0) return;
  End(found->second.cookie, OkStatus());
  transfers_.erase(found);
}

}  // namespace rdma_transport::fabric::libfabric
