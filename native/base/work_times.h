// How long pieces of work took when they ran before.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace rdma_transport {

// Thread-safe, and without locks. A work is identified by an address, and forgotten when another
// one needs its entry. The answers are estimates: a new work at the address of a destroyed one has
// its time until it has run a few times.
class WorkTimes {
 public:
  static constexpr Nanos kUnknown = -1;

  // Returns the recent mean of the time that `work` takes for inputs of `bytes`; kUnknown if it has
  // not run for as many.
  Nanos Expected(const void* work, uint64_t bytes) const {
    const Entry& entry = entries_[IndexOf(work)];
    if (entry.work.load(std::memory_order_relaxed) != work) return kUnknown;
    if (bytes > entry.bytes.load(std::memory_order_relaxed)) return kUnknown;
    return entry.mean.load(std::memory_order_relaxed);
  }

  // Records that `work` took `taken` for inputs of `bytes`.
  void Record(const void* work, uint64_t bytes, Nanos taken) {
    Entry& entry = entries_[IndexOf(work)];
    const Nanos mean = Expected(work, bytes);
    if (mean != kUnknown) {
      entry.mean.store(mean + (taken - mean) / kWeight, std::memory_order_relaxed);
      return;
    }
    entry.mean.store(taken, std::memory_order_relaxed);
    entry.bytes.store(bytes, std::memory_order_relaxed);
    entry.work.store(work, std::memory_order_relaxed);
  }

 private:
  struct Entry {
    std::atomic<const void*> work{nullptr};
    std::atomic<uint64_t> bytes{0};
    std::atomic<Nanos> mean{0};
  };

  // A step that was suspended counts for a few steps only.
  static constexpr Nanos kWeight = 4;
  static constexpr int kIndexBits = 12;

  static size_t IndexOf(const void* work) {
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
    return (reinterpret_cast<uintptr_t>(work) * kSpread) >> (64 - kIndexBits);
  }

  std::array<Entry, size_t{1} << kIndexBits> entries_;
};

}  // namespace rdma_transport
