// How much memory the arenas of a process may take together.
#pragma once

#include <atomic>
#include <cstdint>

namespace rdma_transport::memory {

// Thread-safe.
class Budget {
 public:
  explicit Budget(uint64_t limit) : limit_(limit) {}

  // False: there is not so much left.
  bool Take(uint64_t bytes) {
    uint64_t taken = taken_.load();
    do {
      const uint64_t limit = limit_.load();
      if (taken > limit || bytes > limit - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }
  void Give(uint64_t bytes) { taken_.fetch_sub(bytes); }

  uint64_t limit() const { return limit_.load(); }
  // What is taken already stays so.
  void SetLimit(uint64_t limit) { limit_.store(limit); }

 private:
  std::atomic<uint64_t> limit_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace rdma_transport::memory
