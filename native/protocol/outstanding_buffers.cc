#include "protocol/outstanding_buffers.h"

#include <utility>

#include "protocol/counters.h"

namespace rdma_transport {

uint64_t OutstandingBuffers::Add(OwnerRef owner) {
  GlobalCounters().outstanding_tensors.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mu_);
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  slots_[index].owner = std::move(owner);
  return static_cast<uint64_t>(++slots_[index].generation) << 32 | index;
}

bool OutstandingBuffers::Release(uint64_t id) {
  OwnerRef owner;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const uint64_t index = id & 0xffffffff;
    if (index >= slots_.size() || slots_[index].generation != id >> 32 || !slots_[index].owner) {
      return false;
    }
    owner = std::move(slots_[index].owner);
    free_.push_back(static_cast<uint32_t>(index));
  }
  GlobalCounters().outstanding_tensors.fetch_sub(1, std::memory_order_relaxed);
  return true;
}

void OutstandingBuffers::ReleaseAll() {
  std::vector<OwnerRef> owners;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (uint32_t index = 0; index < slots_.size(); ++index) {
      if (!slots_[index].owner) continue;
      owners.push_back(std::move(slots_[index].owner));
      free_.push_back(index);
    }
  }
  GlobalCounters().outstanding_tensors.fetch_sub(static_cast<int64_t>(owners.size()),
                                                 std::memory_order_relaxed);
}

size_t OutstandingBuffers::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return slots_.size() - free_.size();
}

}  // namespace rdma_transport
