// How a polling thread passes a short time without sleeping.
#pragma once

#include <sched.h>

namespace rdma_transport {

// Takes about 20 to 40 ns, in which another thread of the same core may use it.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" : : : "memory");  // most cores take no time for the instruction `yield`
#endif
}

// Returns after about a microsecond, or later if other threads need the processor.
inline void SpinBriefly() {
  constexpr int kPauses = 32;
  for (int i = 0; i < kPauses; ++i) Pause();
  sched_yield();
}

}  // namespace rdma_transport
