// Finds the variables of a placed graph and how other tasks use them.
#pragma once

#include <vector>

#include "analyzer/plan.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

std::vector<Variable> FindVariables(const tensorflow::Graph& graph);

}  // namespace rdma_transport::analyzer
