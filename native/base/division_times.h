// Whether work is faster divided among threads or on one thread, by how long it took before.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/work_times.h"

namespace rdma_transport {

// Thread-safe, and without locks. Estimates, as WorkTimes.
class DivisionTimes {
 public:
  static constexpr Nanos kUnknown = WorkTimes::kUnknown;
  struct Choice {
    bool divided;
    Nanos expected;  // kUnknown if the work has not run in this way
  };

  // Chooses how to run `work` for inputs of `bytes`. Now and then this is the slower way, so that
  // its time stays known: for a small part of the time that the work takes.
  Choice Choose(const void* work, uint64_t bytes) {
    const Nanos divided = divided_.Expected(work, bytes);
    if (divided == kUnknown || divided < kLeast || divided > kMost) return {true, divided};
    const Nanos whole = whole_.Expected(work, bytes);
    if (whole == kUnknown) return {false, whole};
    const bool divide = (divided < whole) != TriesSlower(divided, whole);
    return {divide, divide ? divided : whole};
  }
  // Returns the recent mean of the time that `work` takes if it is divided, or kUnknown.
  Nanos ExpectedDivided(const void* work, uint64_t bytes) const {
    return divided_.Expected(work, bytes);
  }
  // Records that `work` took `taken` for inputs of `bytes`.
  void Record(const void* work, uint64_t bytes, bool divided, Nanos taken) {
    (divided ? divided_ : whole_).Record(work, bytes, taken);
  }

 private:
  // Work that takes less wakes no threads, or saves little without them.
  static constexpr Nanos kLeast = 10 * kMicrosecond;
  // Work that takes longer, although it is divided, may take far longer on one thread.
  static constexpr Nanos kMost = 200 * kMicrosecond;
  // One in so many units of time is spent to try the slower way.
  static constexpr uint64_t kFaster = 32;

  bool TriesSlower(Nanos a, Nanos b) {
    const auto faster = static_cast<uint64_t>(a < b ? a : b) + 1;
    const auto slower = static_cast<uint64_t>(a < b ? b : a) + 1;
    // Spreads a count over all numbers: unlike every n-th turn, it does not follow a pattern of the
    // graph.
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
    const uint64_t turn = turns_.fetch_add(1, std::memory_order_relaxed);
    return ((turn * kSpread) >> 32) % (kFaster * slower) < faster;
  }

  WorkTimes divided_;
  WorkTimes whole_;
  std::atomic<uint64_t> turns_{0};
};

}  // namespace rdma_transport
