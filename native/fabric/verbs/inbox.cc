#include "fabric/verbs/inbox.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

// Two rings exist at once, so two keys suffice.
constexpr uint64_t kFirstKey = ~uint64_t{0};
constexpr uint64_t kSecondKey = kFirstKey - 1;

uint64_t WholePages(uint64_t bytes) {
  return (bytes + kRingGranule - 1) / kRingGranule * kRingGranule;
}

}  // namespace

Status Inbox::Open(Adapter* adapter, uint64_t limit, uint32_t most_batches) {
  limit_ = WholePages(limit);
  ring_.key = kFirstKey;
  RDMA_RETURN_IF_ERROR(Allocate(adapter, std::min(kFirstRing, limit_), &ring_));
  reader_.Attach(ring_.memory->address(), ring_.size(), most_batches);
  return OkStatus();
}

Status Inbox::Grow(Adapter* adapter, uint64_t size) {
  if (next_.memory != nullptr || size <= ring_.size() || size > limit_) {
    return Status(Code::kDataLoss,
                  "the peer asked for a ring of " + std::to_string(size) + " bytes");
  }
  Ring next;
  next.key = ring_.key == kFirstKey ? kSecondKey : kFirstKey;
  RDMA_RETURN_IF_ERROR(Allocate(adapter, size, &next));
  next_ = std::move(next);
  return OkStatus();
}

Status Inbox::TakeNext(uint64_t* old_key) {
  if (next_.memory == nullptr) {
    return Status(Code::kDataLoss, "the peer uses a ring that it was not told of");
  }
  *old_key = ring_.key;
  ring_ = std::exchange(next_, Ring());
  reader_.Move(ring_.memory->address(), ring_.size());
  return OkStatus();
}

Status Inbox::Allocate(Adapter* adapter, uint64_t size, Ring* ring) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteReadWrite, nullptr, &ring->memory));
  return adapter->Expose(ring->memory->address(), size,
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &ring->registration);
}

}  // namespace rdma_transport::fabric::verbs
