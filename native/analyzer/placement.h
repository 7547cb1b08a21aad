// Decides which edges become static, and with how many slots.
#pragma once

#include <string>
#include <vector>

#include "analyzer/plan.h"

namespace rdma_transport::analyzer {

// The limits of every task, in bytes.
struct Limits {
  uint64_t arena_bytes = 0;   // for slots and sent tensors
  uint64_t inline_bytes = 0;  // tensors of at most this size travel in the notification
};

// Sets mode, reason and slots of each edge, and the tasks of the plan. If a task has too little
// memory for all edges, even if those that are never in use together share it, small edges come
// first: each saves the same time and needs less memory.
void PlaceEdges(const Limits& limits, const std::vector<std::string>& tasks, Plan* plan);

}  // namespace rdma_transport::analyzer
