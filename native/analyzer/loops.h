// Finds the loops of a graph whose control flow is lowered.
#pragma once

#include <vector>

#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Returns by node ID whether the node is inside a loop: an Enter reaches it without passing an
// Exit.
std::vector<bool> InLoops(const tensorflow::Graph& graph);

}  // namespace rdma_transport::analyzer
