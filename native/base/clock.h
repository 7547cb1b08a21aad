// Monotonic time in nanoseconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdint>

namespace rdma_transport {

using Nanos = int64_t;

constexpr Nanos kMicrosecond = 1000;
constexpr Nanos kMillisecond = 1000 * kMicrosecond;
constexpr Nanos kSecond = 1000 * kMillisecond;

inline Nanos Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns the timeout of poll() and epoll_wait() that ends at `deadline` or up to 1 ms later. A
// deadline of 0 means none, and one in the past means that they do not wait.
inline int MillisecondsUntil(Nanos deadline) {
  if (deadline == 0) return -1;
  const Nanos left = deadline - Now();
  return left <= 0 ? 0 : static_cast<int>(std::min<Nanos>(left / kMillisecond + 1, INT_MAX));
}

}  // namespace rdma_transport
