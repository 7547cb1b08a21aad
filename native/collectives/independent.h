// Loops over arrays that may be the same.
#pragma once

// The loop that follows may be vectorized: no iteration depends on another. clang checks that when
// the loop runs.
#if defined(__clang__)
#define RDMA_INDEPENDENT_ITERATIONS
#else
#define RDMA_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif
