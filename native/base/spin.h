// How a polling thread passes a short time without sleeping.
#pragma once

#include <sched.h>

namespace rdma_transport {

// Returns after about a microsecond, or later if other threads need the processor.
inline void SpinBriefly() {
  constexpr int kPauses = 32;
  for (int i = 0; i < kPauses; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  sched_yield();
}

}  // namespace rdma_transport
