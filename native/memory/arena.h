// The allocator from which tensors that may cross are born: memory registered with the fabric, in
// slabs that are added as they are needed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "fabric/fabric.h"
#include "memory/extent_allocator.h"

namespace rdma_transport::memory {

struct ArenaStats {
  uint64_t limit_bytes = 0;     // what it may take
  uint64_t capacity_bytes = 0;  // what it has taken, in slabs
  uint64_t used_bytes = 0;      // what is allocated
  uint64_t slabs = 0;
  uint64_t registrations = 0;  // slabs ever registered
  uint64_t refused = 0;        // allocations that found no memory
};

// Thread-safe.
class Arena {
 public:
  // `device` must outlive the arena. `limit` in bytes, rounded down to the device's granule.
  Arena(fabric::Device* device, uint64_t limit,
        fabric::Access access = fabric::Access::kRemoteRead);

  // Memory of at least `length` bytes, aligned to 64; null when there is none.
  char* Allocate(size_t length);
  void Free(char* address);

  // Two comparisons: whether `address` is inside the arena's address range.
  bool Contains(const void* address) const {
    const auto value = reinterpret_cast<uintptr_t>(address);
    const uintptr_t base = base_.load(std::memory_order_relaxed);
    return value >= base && value - base < limit_;
  }
  ArenaStats Stats() const;

 private:
  struct Slab {
    std::unique_ptr<fabric::Region> region;
    uint64_t used = 0;
  };

  bool ReserveLocked();
  bool GrowLocked(size_t length);
  bool TakePlaceLocked(size_t length, char** place);
  void ReleaseEmptySlabsLocked();
  Slab* SlabOfLocked(const char* address);

  fabric::Device* const device_;
  const uint64_t limit_;
  const fabric::Access access_;
  std::atomic<uintptr_t> base_{~uintptr_t{0}};

  mutable std::mutex mu_;
  bool reserve_failed_ = false;
  bool growth_failed_logged_ = false;
  ExtentAllocator extents_;
  std::map<char*, Slab> slabs_;
  ArenaStats stats_;
};

}  // namespace rdma_transport::memory
