// Measures memcpy() over more memory than the caches hold, for comparison with transfers of tensors
// that were not touched lately.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace rdma_transport::fabric {

// Two arrays, each at least twice as large as the last cache. Not thread-safe.
class UncachedCopy final {
 public:
  // Allocates and touches the arrays, with room for blocks of `largest` bytes.
  // Errors: ResourceExhausted if there is no memory for them.
  Status Allocate(uint64_t largest);
  // Copies `times` blocks of `bytes`, each behind the one before, also of earlier calls.
  // Errors: InvalidArgument if `bytes` is zero or more than Allocate() made room for.
  Status Run(uint64_t bytes, uint64_t times, Nanos* elapsed);

 private:
  std::vector<char> source_;
  std::vector<char> target_;
  uint64_t next_ = 0;  // offset of the next block
};

}  // namespace rdma_transport::fabric
