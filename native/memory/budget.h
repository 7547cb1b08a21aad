// The limit on the memory that the arenas of a process take together.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdma_transport::memory {

// Thread-safe.
class Budget {
 public:
  explicit Budget(uint64_t limit) : limit_(limit) {}

  // Returns false if fewer than `bytes` are left.
  bool Take(uint64_t bytes) {
    uint64_t taken = taken_.load();
    do {
      const uint64_t limit = limit_.load();
      if (taken > limit || bytes > limit - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  // Returns `bytes` to the budget.
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes); }

  uint64_t limit() const { return limit_.load(); }
  // Does not affect what is already taken.
  void SetLimit(uint64_t limit) { limit_.store(limit); }

 private:
  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace rdma_transport::memory
