// Finds the edges of one task's partition: the tensors that its _Send nodes send to other tasks.
#pragma once

#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Appends the edges to `edges`, except for mode, reason and slots, which PlaceEdges() sets.
void FindEdges(const tensorflow::Graph& partition, std::vector<Edge>* edges);

}  // namespace rdma_transport::analyzer
