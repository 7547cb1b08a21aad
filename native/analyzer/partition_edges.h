// The edges of one task's partition: what its _Send nodes send to other tasks.
#pragma once

#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Appends them, with all that the partition shows; class and slots are PlaceEdges()'s.
void FindEdges(const tensorflow::Graph& partition, std::vector<Edge>* edges);

}  // namespace rdma_transport::analyzer
