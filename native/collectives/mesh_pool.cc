#include "collectives/mesh_pool.h"

#include <utility>

namespace rdma_transport::collectives {
namespace {

constexpr uint64_t kPoolRegionBytes = 16 * kBlockBytes;

}  // namespace

Status BlockPool::Take(Block* block) {
  std::lock_guard<std::mutex> lock(mu_);
  if (free_.empty()) {
    const uint64_t granule = device_->RegionGranule();
    const uint64_t length = (kPoolRegionBytes + granule - 1) / granule * granule;
    std::unique_ptr<fabric::Region> region;
    RDMA_RETURN_IF_ERROR(device_->Allocate(length, fabric::Access::kRemoteRead, nullptr, &region));
    for (uint64_t end = length; end >= kBlockBytes; end -= kBlockBytes) {
      const uint64_t offset = end - kBlockBytes;
      free_.push_back({region->address() + offset, region->key(), offset});
    }
    regions_.push_back(std::move(region));
  }
  *block = free_.back();
  free_.pop_back();
  return OkStatus();
}

void BlockPool::Give(const Block& block) {
  std::lock_guard<std::mutex> lock(mu_);
  free_.push_back(block);
}

}  // namespace rdma_transport::collectives
