// Counts durations in fixed buckets, as Prometheus does.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "base/clock.h"

namespace rdma_transport {

// Thread-safe. Add() neither locks nor allocates.
class Histogram {
 public:
  // The longest duration of each bucket, in nanoseconds: 1 us to 10 s. One more bucket has the
  // durations above.
  static constexpr std::array<Nanos, 22> kBounds = {
      1 * kMicrosecond,   2 * kMicrosecond,   5 * kMicrosecond,    //
      10 * kMicrosecond,  20 * kMicrosecond,  50 * kMicrosecond,   //
      100 * kMicrosecond, 200 * kMicrosecond, 500 * kMicrosecond,  //
      1 * kMillisecond,   2 * kMillisecond,   5 * kMillisecond,    //
      10 * kMillisecond,  20 * kMillisecond,  50 * kMillisecond,   //
      100 * kMillisecond, 200 * kMillisecond, 500 * kMillisecond,  //
      1 * kSecond,        2 * kSecond,        5 * kSecond,         //
      10 * kSecond};

  // Values read from one or several histograms.
  struct Counts {
    std::array<uint64_t, kBounds.size() + 1> buckets = {};
    uint64_t sum = 0;  // of the durations, in nanoseconds

    // Returns an object with "buckets" (by bound, in seconds: the number of durations up to it; the
    // last bound is "+Inf"), "count", and "sum" in seconds.
    std::string ToJson() const;
  };

  // A negative duration counts as 0.
  void Add(Nanos duration) {
    const auto* bound = std::lower_bound(kBounds.begin(), kBounds.end(), duration);
    buckets_[static_cast<size_t>(bound - kBounds.begin())].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(static_cast<uint64_t>(std::max<Nanos>(duration, 0)), std::memory_order_relaxed);
  }

  void AddTo(Counts* counts) const {
    for (size_t i = 0; i < buckets_.size(); ++i) {
      counts->buckets[i] += buckets_[i].load(std::memory_order_relaxed);
    }
    counts->sum += sum_.load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<uint64_t>, kBounds.size() + 1> buckets_ = {};
  std::atomic<uint64_t> sum_{0};
};

}  // namespace rdma_transport
