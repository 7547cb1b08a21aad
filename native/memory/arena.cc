#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "base/log.h"

namespace rdma_transport::memory {
namespace {

constexpr uint64_t kFirstSlab = uint64_t{8} << 20;
constexpr uint64_t kLargestSlab = uint64_t{256}
                                  << 20;  // for tensors that fit; others get their own

}  // namespace

Arena::Arena(fabric::Device* device, uint64_t limit, fabric::Access access)
    : device_(device),
      limit_(limit / device->RegionGranule() * device->RegionGranule()),
      access_(access) {
  stats_.limit_bytes = limit_;
}

bool Arena::ReserveLocked() {
  if (base_.load() != ~uintptr_t{0}) return true;
  if (reserve_failed_ || limit_ == 0) return false;
  const size_t granule = device_->RegionGranule();
  void* reserved = mmap(nullptr, limit_ + granule, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    reserve_failed_ = true;
    Log(LogLevel::kWarning, "no arena: " + std::to_string(limit_) +
                                " bytes of address space cannot be reserved (ulimit -v?); tensors "
                                "are allocated as without the plugin");
    return false;
  }
  base_.store((reinterpret_cast<uintptr_t>(reserved) + granule - 1) / granule * granule);
  return true;
}

// First fit over the gaps between slabs.
bool Arena::TakePlaceLocked(size_t length, char** place) {
  char* candidate = reinterpret_cast<char*>(base_.load());
  for (const auto& [start, slab] : slabs_) {
    if (static_cast<size_t>(start - candidate) >= length) break;
    candidate = start + slab.region->length();
  }
  *place = candidate;
  return reinterpret_cast<uintptr_t>(candidate) + length <= base_.load() + limit_;
}

void Arena::ReleaseEmptySlabsLocked() {
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    if (it->second.used == 0 && extents_.RemoveRange(it->first)) {
      stats_.capacity_bytes -= it->second.region->length();
      it = slabs_.erase(it);
    } else {
      ++it;
    }
  }
}

bool Arena::GrowLocked(size_t length) {
  if (!ReserveLocked()) return false;
  const size_t granule = device_->RegionGranule();
  const size_t needed = (length + granule - 1) / granule * granule;
  if (needed > limit_ || needed < length) return false;
  uint64_t wanted = std::clamp<uint64_t>(stats_.capacity_bytes / 2, kFirstSlab, kLargestSlab);
  wanted = std::max<uint64_t>(wanted / granule * granule, needed);
  if (stats_.capacity_bytes + wanted > limit_) wanted = needed;
  if (stats_.capacity_bytes + wanted > limit_) ReleaseEmptySlabsLocked();
  if (stats_.capacity_bytes + wanted > limit_) return false;
  char* place = nullptr;
  if (!TakePlaceLocked(wanted, &place)) return false;
  Slab slab;
  Status status = device_->Allocate(wanted, access_, place, &slab.region);
  if (!status.ok() && wanted > needed) {
    wanted = needed;
    status = device_->Allocate(wanted, access_, place, &slab.region);
  }
  if (!status.ok()) {
    if (!growth_failed_logged_) {
      growth_failed_logged_ = true;
      Log(LogLevel::kWarning, "the arena cannot grow beyond " +
                                  std::to_string(stats_.capacity_bytes) +
                                  " bytes: " + status.message());
    }
    return false;
  }
  extents_.AddRange(place, wanted);
  slabs_.emplace(place, std::move(slab));
  stats_.capacity_bytes += wanted;
  ++stats_.registrations;
  return true;
}

Arena::Slab* Arena::SlabOfLocked(const char* address) {
  auto after = slabs_.upper_bound(const_cast<char*>(address));
  return &std::prev(after)->second;
}

char* Arena::Allocate(size_t length) {
  if (length == 0 || !device_->Usable()) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  char* address = extents_.Allocate(length);
  if (address == nullptr && GrowLocked(length)) address = extents_.Allocate(length);
  if (address == nullptr) {
    ++stats_.refused;
    return nullptr;
  }
  const uint64_t rounded = (length + ExtentAllocator::kAlignment - 1) /
                           ExtentAllocator::kAlignment * ExtentAllocator::kAlignment;
  SlabOfLocked(address)->used += rounded;
  stats_.used_bytes += rounded;
  return address;
}

void Arena::Free(char* address) {
  // In a forked child the bookkeeping is a copy, perhaps torn, of the parent's.
  if (!device_->Usable()) return;
  std::lock_guard<std::mutex> lock(mu_);
  const size_t length = extents_.Free(address);
  if (length == 0) {
    Log(LogLevel::kError, "memory was given back to the arena twice; ignored");
    return;
  }
  SlabOfLocked(address)->used -= length;
  stats_.used_bytes -= length;
}

ArenaStats Arena::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  ArenaStats stats = stats_;
  stats.slabs = slabs_.size();
  return stats;
}

}  // namespace rdma_transport::memory
