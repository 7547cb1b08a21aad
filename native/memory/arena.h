// The allocator for tensors that may be sent to other tasks. It allocates from slabs of memory that
// is registered with a fabric, and adds slabs on demand.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "memory/budget.h"
#include "memory/extent_allocator.h"

namespace rdma_transport::memory {

// A snapshot of one arena.
struct ArenaStats {
  uint64_t limit_bytes = 0;     // of the budget, which other arenas may share
  uint64_t capacity_bytes = 0;  // of all slabs
  uint64_t used_bytes = 0;      // of all allocations
  uint64_t slabs = 0;
  uint64_t registrations = 0;  // slabs registered since the start
  uint64_t refused = 0;        // allocations that returned null
};

// Thread-safe. While one thread waits for a new slab, others can allocate and free.
class Arena {
 public:
  // `device` must outlive the arena. The arena takes at most `share`, from 0 to 1, of `budget`. The
  // limit of `budget` may shrink later, but must not grow.
  Arena(fabric::Device* device, std::shared_ptr<Budget> budget,
        fabric::Access access = fabric::Access::kRemoteRead, double share = 1);
  // Creates a budget of `limit` bytes for this arena alone.
  Arena(fabric::Device* device, uint64_t limit) : Arena(device, std::make_shared<Budget>(limit)) {}
  // Sets another arena with the same budget. If this arena runs out of budget, it makes `neighbor`
  // release its empty slabs. Call it before either arena is used.
  void SetNeighbor(Arena* neighbor) { neighbor_ = neighbor; }
  // Sets what the arena calls when it runs out of budget, to be freed memory that nobody needs. It
  // must not allocate from the arena. Call it before the arena is used.
  void SetReclaim(std::function<void()> reclaim) { reclaim_ = std::move(reclaim); }

  // Sets what is called with each new slab before it is used. If it returns an error, the first one
  // is logged, and the slab is used all the same. It may be set at any time.
  void SetPrepare(std::function<Status(fabric::Region* slab)> prepare);
  // Sets what is called with each slab before it is returned to the system. Call it before the
  // arena is used.
  void SetReleased(std::function<void(const fabric::Region& slab)> released) {
    released_ = std::move(released);
  }

  // Returns at least `length` bytes, aligned to 64 bytes. Returns null if `length` is 0, the budget
  // or the memory is exhausted, or the process is a forked child.
  char* Allocate(size_t length);
  // The same, but returns null instead of adding a slab, which may take seconds. Quick.
  char* AllocateIfThere(size_t length);
  // Logs and ignores memory that is not allocated. Does nothing in a forked child.
  void Free(char* address);
  // Returns to the system each slab of a large tensor that has been empty since the last call.
  void ReleaseUnused();
  // Returns all empty slabs to the system, unless another thread is adding one.
  void ReleaseEmptySlabsIfIdle();

  // Returns whether `address` lies in the arena's address range. Costs two comparisons.
  bool Contains(const void* address) const {
    const auto value = reinterpret_cast<uintptr_t>(address);
    const uintptr_t base = base_.load(std::memory_order_relaxed);
    return value >= base && value - base < limit_;
  }
  ArenaStats Stats() const;

 private:
  struct Slab {
    std::unique_ptr<fabric::Region> region;
    bool own = false;  // allocated for one large tensor
    uint64_t used = 0;
    bool unused = false;  // since the last ReleaseUnused()
  };

  bool ReserveLocked();
  bool TakePlaceLocked(size_t length, char** place);
  uint64_t ReserveSlab(uint64_t needed);
  static bool Any(const Slab& /*slab*/) { return true; }
  void ReleaseEmptySlabs(bool (*chosen)(const Slab&));
  std::vector<Slab> TakeEmptySlabsLocked(bool (*chosen)(const Slab&));
  Status MakeSlab(uint64_t needed, uint64_t* length, std::unique_ptr<fabric::Region>* region);
  void LogFailedGrowthLocked(const Status& status);
  char* TakeLocked(size_t length);
  // Requires grow_mu_.
  bool Grow(size_t length);
  Slab* SlabOfLocked(const char* address);

  fabric::Device* const device_;
  const std::shared_ptr<Budget> budget_;
  const uint64_t limit_;  // size of the address range
  const fabric::Access access_;
  const double share_;  // of the budget
  Arena* neighbor_ = nullptr;
  std::function<void()> reclaim_;
  std::function<Status(fabric::Region*)> prepare_;  // guarded by grow_mu_
  std::function<void(const fabric::Region&)> released_;
  bool prepare_failed_logged_ = false;  // and so is this
  std::atomic<uintptr_t> base_{~uintptr_t{0}};

  std::mutex grow_mu_;     // held while the arena grows; acquired before mu_
  mutable std::mutex mu_;  // guards the fields below; never held during a call of the device
  bool reserve_failed_ = false;
  bool growth_failed_logged_ = false;
  ExtentAllocator extents_;
  std::map<char*, Slab> slabs_;
  uint64_t shared_bytes_ = 0;  // of the slabs for several tensors
  ArenaStats stats_;
};

}  // namespace rdma_transport::memory
