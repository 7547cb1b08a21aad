// Memory limits of this process's control group and its ancestors.
#pragma once

#include <cstddef>
#include <string>

namespace rdma_transport::fabric::host {

// Memory of the control group that this process is in, in bytes.
struct MemoryBounds {
  size_t limit;      // total
  size_t available;  // remaining, counting memory that can be reclaimed
};

// Supports cgroup v1 and v2. Values that are not limited are the maximum of size_t. `root` is for
// tests.
MemoryBounds ControlGroupMemory(const std::string& root = "");

}  // namespace rdma_transport::fabric::host
