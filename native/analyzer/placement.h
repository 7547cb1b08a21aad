// Which edge becomes static, and with how many slots.
#pragma once

#include <string>
#include <vector>

#include "analyzer/plan.h"

namespace rdma_transport::analyzer {

struct Limits {
  uint64_t arena_bytes = 0;   // of each task, for slots and for what it sends
  uint64_t inline_bytes = 0;  // a tensor of at most this size rides in the notification
};

// Fills in class, reason and slots of each edge, and the tasks of the plan. Small edges are served
// first: each saves the same time and takes less.
void PlaceEdges(const Limits& limits, const std::vector<std::string>& tasks, Plan* plan);

}  // namespace rdma_transport::analyzer
