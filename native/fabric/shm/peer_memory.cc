#include "fabric/shm/peer_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fabric/host/memory_file.h"

namespace rdma_transport::fabric::shm {
namespace {

// Limit per channel, enough for an arena of 1 TiB in slabs of 256 MiB.
constexpr size_t kMaxRegions = 4096;

}  // namespace

Status PeerMemory::Add(const Message& message, const Owner& owner,
                       std::shared_ptr<const void> presence) {
  RegionMessage region;
  RDMA_RETURN_IF_ERROR(FromBytes(message.bytes, &region));
  if (message.descriptors.size() != 1) {
    return Status(Code::kDataLoss, "a region without its memory");
  }
  const int fd = message.descriptors[0].get();
  const bool writable = region.writable != 0;
  RDMA_RETURN_IF_ERROR(MayAdd(region));
  RDMA_RETURN_IF_ERROR(host::CheckMemoryFile(fd, region.length, writable));
  std::shared_ptr<Mapping> mapping;
  RDMA_RETURN_IF_ERROR(Window::Get().Map(fd, region.length, writable, region.key, owner,
                                         std::move(presence), &mapping));
  std::lock_guard<std::mutex> lock(mu_);
  mapped_bytes_ += region.length;
  regions_[region.key] = std::make_shared<PeerRegion>(std::move(mapping));
  return OkStatus();
}

Status PeerMemory::MayAdd(const RegionMessage& region) const {
  // The peer cannot share more.
  static const uint64_t kHostMemory = HostMemory();
  std::lock_guard<std::mutex> lock(mu_);
  if (regions_.count(region.key) != 0) {
    return Status(Code::kDataLoss, "the peer shared a region twice");
  }
  if (region.length > kHostMemory || mapped_bytes_ > kHostMemory - region.length) {
    return Status(Code::kInvalidArgument, "the peer shares more than the " +
                                              std::to_string(kHostMemory) +
                                              " bytes of this host's memory");
  }
  if (regions_.size() >= kMaxRegions) {
    return Status(Code::kResourceExhausted,
                  "the peer shares more than " + std::to_string(kMaxRegions) + " regions");
  }
  return OkStatus();
}

void PeerMemory::Remove(uint64_t key) {
  std::shared_ptr<PeerRegion> region;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const auto found = regions_.find(key);
    if (found == regions_.end()) return;
    region = std::move(found->second);
    mapped_bytes_ -= region->length();
    regions_.erase(found);
    const auto idle = [](const auto& other) {
      return other->Close(PeerRegion::End::kRegionReleased);
    };
    removed_.erase(std::remove_if(removed_.begin(), removed_.end(), idle), removed_.end());
    if (!idle(region)) removed_.push_back(region);
  }
  region->Drop(PeerRegion::End::kRegionReleased);
}

bool PeerMemory::Close() {
  constexpr auto kEnd = PeerRegion::End::kChannelClosed;
  bool idle = true;
  std::lock_guard<std::mutex> lock(mu_);
  for (const auto& [key, region] : regions_) idle = region->Close(kEnd) && idle;
  for (const auto& region : removed_) idle = region->Close(kEnd) && idle;
  return idle;
}

void PeerMemory::Clear() {
  decltype(regions_) regions;  // unmapped after the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    regions.swap(regions_);
    removed_.clear();
    mapped_bytes_ = 0;
  }
  for (const auto& [key, region] : regions) region->Drop(PeerRegion::End::kChannelClosed);
}

std::shared_ptr<PeerRegion> PeerMemory::Find(uint64_t key) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = regions_.find(key);
  return found == regions_.end() ? nullptr : found->second;
}

std::shared_ptr<Mapping> PeerMemory::FindMapping(const RemoteSpan& span) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = regions_.find(span.key);
  if (found == regions_.end()) return nullptr;
  const uint64_t length = found->second->length();
  const bool inside = span.offset <= length && span.length <= length - span.offset;
  return inside ? found->second->mapping() : nullptr;
}

}  // namespace rdma_transport::fabric::shm
