// The identity of a remote task within a task of this process.
#pragma once

#include <string>

namespace rdma_transport {

struct TaskPair {
  const std::string local;
  const std::string remote;
};

// Compared as an address: the local task has one pair for each remote one. It lives as long as the
// process.
using PeerId = const TaskPair*;

}  // namespace rdma_transport
