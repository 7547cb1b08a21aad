// What the control groups of this process allow it: the one that it is in, and those around that.
#pragma once

#include <cstddef>
#include <string>

namespace rdma_transport::fabric::host {

struct MemoryBounds {
  size_t limit;      // in all
  size_t available;  // beside what is used, and cannot be reclaimed, already
};

// Of cgroup v1 and v2. The largest numbers there are where nothing is limited. `root`: for tests.
MemoryBounds ControlGroupMemory(const std::string& root = "");

}  // namespace rdma_transport::fabric::host
