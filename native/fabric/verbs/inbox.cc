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

Status Inbox::Grow(const std::vector<Adapter*>& adapters, size_t main, uint64_t size) {
  if (next_.memory != nullptr || size <= ring_.size() || size > limit_) {
    return Status(Code::kDataLoss,
                  "the peer asked for a ring of " + std::to_string(size) + " bytes");
  }
  Ring next;
  next.key = ring_.key == kRingKey ? kRingKey - 1 : kRingKey;  // two rings exist at once
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteReadWrite, nullptr, &next.memory));
  for (size_t port = 0; port < adapters.size(); ++port) {
    if (adapters[port] == nullptr) continue;
    const Status exposed = Expose(adapters[port], &next);
    if (!exposed.ok() && port == main) return exposed;
  }
  next_ = std::move(next);
  return OkStatus();
}

Status Inbox::Register(Adapter* adapter, bool next) {
  return Expose(adapter, next ? &next_ : &ring_);
}

Status Inbox::Expose(Adapter* adapter, Ring* ring) {
  const size_t port = adapter->index();
  if (ring->registrations.size() <= port) ring->registrations.resize(port + 1);
  if (ring->registrations[port] != nullptr) return OkStatus();
  return adapter->Expose(ring->memory->address(), ring->size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                         &ring->registrations[port]);
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
