#include "memory/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/log.h"

namespace rdma_transport::memory {
namespace {

constexpr uint64_t kFirstSlab = uint64_t{8} << 20;
constexpr uint64_t kLargestSlab = uint64_t{256} << 20;
// A tensor of this size gets a slab of its own, which goes back to the system without others.
constexpr uint64_t kOwnSlab = uint64_t{64} << 20;

}  // namespace

Arena::Arena(fabric::Device* device, std::shared_ptr<Budget> budget, fabric::Access access,
             double share)
    : device_(device),
      budget_(std::move(budget)),
      limit_(budget_->limit() / device->RegionGranule() * device->RegionGranule()),
      access_(access),
      share_(share) {}

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

// Removes the slabs from the bookkeeping. The memory is freed when the caller destroys them.
std::vector<Arena::Slab> Arena::TakeEmptySlabsLocked(bool (*chosen)(const Slab&)) {
  std::vector<Slab> empty;
  for (auto it = slabs_.begin(); it != slabs_.end();) {
    if (it->second.used == 0 && chosen(it->second) && extents_.RemoveRange(it->first)) {
      stats_.capacity_bytes -= it->second.region->length();
      if (!it->second.own) shared_bytes_ -= it->second.region->length();
      empty.push_back(std::move(it->second));
      it = slabs_.erase(it);
    } else {
      ++it;
    }
  }
  return empty;
}

// Requires grow_mu_, so that no other thread takes the place before it is free.
void Arena::ReleaseEmptySlabs(bool (*chosen)(const Slab&)) {
  std::vector<Slab> released;
  {
    std::lock_guard<std::mutex> lock(mu_);
    released = TakeEmptySlabsLocked(chosen);
  }
  for (Slab& slab : released) {
    const uint64_t length = slab.region->length();
    if (released_ != nullptr) released_(*slab.region);
    slab.region = nullptr;
    budget_->Give(length);
  }
}

void Arena::ReleaseEmptySlabsIfIdle() {
  const std::unique_lock<std::mutex> growing(grow_mu_, std::try_to_lock);
  if (growing.owns_lock()) ReleaseEmptySlabs(&Any);
}

void Arena::ReleaseUnused() {
  const std::unique_lock<std::mutex> growing(grow_mu_, std::try_to_lock);
  if (!growing.owns_lock()) return;
  ReleaseEmptySlabs([](const Slab& slab) { return slab.own && slab.unused; });
  std::lock_guard<std::mutex> lock(mu_);
  for (auto& [start, slab] : slabs_) slab.unused = slab.used == 0;
}

// Reserves budget for a slab that fits `needed` bytes. Returns 0 if there is not enough.
uint64_t Arena::ReserveSlab(uint64_t needed) {
  const size_t granule = device_->RegionGranule();
  uint64_t capacity = 0;
  uint64_t shared = 0;
  {
    std::lock_guard<std::mutex> lock(mu_);
    capacity = stats_.capacity_bytes;
    shared = shared_bytes_;
  }
  uint64_t wanted = std::clamp<uint64_t>(shared / 2, kFirstSlab, kLargestSlab);
  wanted = needed >= kOwnSlab ? needed : std::max<uint64_t>(wanted / granule * granule, needed);
  const auto most = static_cast<uint64_t>(share_ * static_cast<double>(budget_->limit()));
  if (capacity + needed > most) return 0;
  if (capacity + wanted <= most && budget_->Take(wanted)) return wanted;
  return budget_->Take(needed) ? needed : 0;
}

// Slow work is done without mu_, so that other threads can use the existing slabs meanwhile. Only
// the growing thread takes a place, so the place stays free until the slab is added.
bool Arena::Grow(size_t length) {
  const size_t granule = device_->RegionGranule();
  const size_t needed = (length + granule - 1) / granule * granule;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!ReserveLocked() || needed > limit_ || needed < length) return false;
  }
  uint64_t wanted = ReserveSlab(needed);
  if (wanted == 0) {
    if (reclaim_ != nullptr) reclaim_();
    ReleaseEmptySlabs(&Any);
    if (neighbor_ != nullptr) neighbor_->ReleaseEmptySlabsIfIdle();
    wanted = ReserveSlab(needed);
  }
  if (wanted == 0) return false;
  std::unique_ptr<fabric::Region> region;
  const Status status = MakeSlab(needed, &wanted, &region);
  if (status.ok() && prepare_ != nullptr) {
    const Status prepared = prepare_(region.get());
    if (!prepared.ok() && !std::exchange(prepare_failed_logged_, true)) {
      Log(LogLevel::kWarning, prepared.message());
    }
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (!status.ok()) {
    LogFailedGrowthLocked(status);
    return false;
  }
  char* place = region->address();
  extents_.AddRange(place, wanted);
  const bool own = needed >= kOwnSlab;
  slabs_[place] = {std::move(region), own};
  stats_.capacity_bytes += wanted;
  if (!own) shared_bytes_ += wanted;
  ++stats_.registrations;
  return true;
}

// Allocates a slab of `*length` bytes or, if that fails, of `needed` bytes. Returns unused budget.
Status Arena::MakeSlab(uint64_t needed, uint64_t* length, std::unique_ptr<fabric::Region>* region) {
  Status status(Code::kResourceExhausted, "its address range has no gap that is long enough");
  for (const uint64_t attempt : {*length, needed}) {
    char* place = nullptr;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (!TakePlaceLocked(attempt, &place)) continue;
    }
    status = device_->Allocate(attempt, access_, place, region);
    if (!status.ok()) continue;
    budget_->Give(*length - attempt);
    *length = attempt;
    return status;
  }
  budget_->Give(*length);
  return status;
}

void Arena::LogFailedGrowthLocked(const Status& status) {
  if (growth_failed_logged_) return;
  growth_failed_logged_ = true;
  Log(LogLevel::kWarning, "the arena cannot grow beyond " + std::to_string(stats_.capacity_bytes) +
                              " bytes: " + status.message());
}

Arena::Slab* Arena::SlabOfLocked(const char* address) {
  auto after = slabs_.upper_bound(const_cast<char*>(address));
  return &std::prev(after)->second;
}

char* Arena::TakeLocked(size_t length) {
  char* address = extents_.Allocate(length);
  if (address == nullptr) return nullptr;
  const uint64_t rounded = (length + ExtentAllocator::kAlignment - 1) /
                           ExtentAllocator::kAlignment * ExtentAllocator::kAlignment;
  Slab* slab = SlabOfLocked(address);
  slab->used += rounded;
  slab->unused = false;
  stats_.used_bytes += rounded;
  return address;
}

char* Arena::AllocateIfThere(size_t length) {
  if (length == 0 || !device_->Usable()) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  return TakeLocked(length);
}

void Arena::SetPrepare(std::function<Status(fabric::Region* slab)> prepare) {
  std::lock_guard<std::mutex> lock(grow_mu_);
  prepare_ = std::move(prepare);
}

char* Arena::Allocate(size_t length) {
  if (length == 0 || !device_->Usable()) return nullptr;
  if (char* address = AllocateIfThere(length)) return address;
  std::lock_guard<std::mutex> growing(grow_mu_);
  char* address = AllocateIfThere(length);  // another thread may have grown the arena
  // Other threads may use up the new slab first.
  while (address == nullptr && Grow(length)) address = AllocateIfThere(length);
  if (address != nullptr) return address;
  std::lock_guard<std::mutex> lock(mu_);
  ++stats_.refused;
  return nullptr;
}

void Arena::Free(char* address) {
  // A forked child has only a copy of the bookkeeping, which may be inconsistent.
  if (!device_->Usable()) return;
  std::lock_guard<std::mutex> lock(mu_);
  const size_t length = extents_.Free(address);
  if (length == 0) {
    Log(LogLevel::kError, "the same arena memory was released twice; ignored");
    return;
  }
  SlabOfLocked(address)->used -= length;
  stats_.used_bytes -= length;
}

ArenaStats Arena::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  ArenaStats stats = stats_;
  stats.slabs = slabs_.size();
  stats.limit_bytes = budget_->limit();
  return stats;
}

}  // namespace rdma_transport::memory
