#include "fabric/libfabric/transfers.h"

namespace rdma_transport::fabric::libfabric {

Status Transfers::Begin(bool write, const RemoteSpan& span, char* local, void* descriptor,
                        uint64_t cookie) {
  const RegionRecord* region = nullptr;
  RDMA_RETURN_IF_ERROR(
      Check(span, write ? Access::kRemoteReadWrite : Access::kRemoteRead, &region));
  if (span.length == 0) {
    End(cookie, OkStatus());  // there is nothing to move
    return OkStatus();
  }
  (write ? writes_ : reads_)
      .push_back(
          {local, descriptor, span.length, region->base + span.offset, region->remote_key, cookie});
  return OkStatus();
}

void Transfers::PopWrite() {
  ++started_;
  writes_.pop_front();
}

void Transfers::OnEnded(uint64_t cookie, uint64_t sequence) {
  if (sequence == 0 || finished_.Add(sequence)) End(cookie, OkStatus());
}

}  // namespace rdma_transport::fabric::libfabric
