// The allocator from which tensors that may cross are born: memory registered with the fabric, in
// slabs that are added as they are needed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "memory/budget.h"
#include "memory/extent_allocator.h"

namespace rdma_transport::memory {

struct ArenaStats {
  uint64_t limit_bytes = 0;     // what it may take, with others of the same budget
  uint64_t capacity_bytes = 0;  // what it has taken, in slabs
  uint64_t used_bytes = 0;      // what is allocated
  uint64_t slabs = 0;
  uint64_t registrations = 0;  // slabs ever registered
  uint64_t refused = 0;        // allocations that found no memory
};

// Thread-safe. While one thread waits for more memory, others allocate and free what is there.
class Arena {
 public:
  // `device` must outlive the arena. It takes memory from `budget`, whose limit may sink later but
  // not rise: at most this share of it, from 0 to 1.
  Arena(fabric::Device* device, std::shared_ptr<Budget> budget,
        fabric::Access access = fabric::Access::kRemoteRead, double share = 1);
  // With a budget of its own, in bytes.
  Arena(fabric::Device* device, uint64_t limit) : Arena(device, std::make_shared<Budget>(limit)) {}
  // Another arena with the same budget, which gives back what it does not use when this one needs
  // it. Before either is used.
  void SetNeighbor(Arena* neighbor) { neighbor_ = neighbor; }

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
  bool TakePlaceLocked(size_t length, char** place);
  uint64_t ReserveSlab(uint64_t needed);
  void ReleaseEmptySlabs();
  void ReleaseEmptySlabsIfIdle();
  std::vector<Slab> TakeEmptySlabsLocked();
  Status MakeSlab(uint64_t needed, uint64_t* length, std::unique_ptr<fabric::Region>* region);
  void LogFailedGrowthLocked(const Status& status);
  char* TakeLocked(size_t length);
  char* TakeIfThere(size_t length);
  // With grow_mu_.
  bool Grow(size_t length);
  Slab* SlabOfLocked(const char* address);

  fabric::Device* const device_;
  const std::shared_ptr<Budget> budget_;
  const uint64_t limit_;  // of the address range
  const fabric::Access access_;
  const double share_;  // of the budget
  Arena* neighbor_ = nullptr;
  std::atomic<uintptr_t> base_{~uintptr_t{0}};

  std::mutex grow_mu_;     // who grows; before mu_
  mutable std::mutex mu_;  // the books; never held while the device works
  bool reserve_failed_ = false;
  bool growth_failed_logged_ = false;
  ExtentAllocator extents_;
  std::map<char*, Slab> slabs_;
  ArenaStats stats_;
};

}  // namespace rdma_transport::memory
