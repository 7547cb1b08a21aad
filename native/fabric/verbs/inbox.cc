#include "fabric/verbs/inbox.h"

#include <string>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

uint64_t WholePages(uint64_t bytes) {
  return (bytes + kRingGranule - 1) / kRingGranule * kRingGranule;
}

}  // namespace

Status Inbox::Open(uint64_t limit, uint32_t most_batches) {
  limit_ = WholePages(limit);
  ring_.key = kRingKey;
  RDMA_RETURN_IF_ERROR(host::MemoryRegion::Create(0, first_size(), Access::kRemoteReadWrite,
                                                  nullptr, &ring_.memory));
  reader_.Attach(ring_.memory->address(), ring_.size(), most_batches);
  return OkStatus();
}

Status Inbox::Grow(Adapter* adapter, uint64_t size) {
  if (next_.memory != nullptr || size <= ring_.size() || size > limit_) {
    return Status(Code::kDataLoss,
                  "the peer asked for a ring of " + std::to_string(size) + " bytes");
  }
  Ring next;
  next.key = ring_.key == kRingKey ? kRingKey - 1 : kRingKey;  // two rings exist at once
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteReadWrite, nullptr, &next.memory));
  RDMA_RETURN_IF_ERROR(adapter->Expose(next.memory->address(), size,
                                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                                       &next.registration));
  next_ = std::move(next);
  return OkStatus();
}

Status Inbox::TakeNext(Ring* old) {
  if (next_.memory == nullptr) {
    return Status(Code::kDataLoss, "the peer uses a ring that it was not told of");
  }
  *old = std::exchange(ring_, std::exchange(next_, Ring()));
  reader_.Move(ring_.memory->address(), ring_.size());
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
