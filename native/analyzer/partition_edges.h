// Finds the edges of one task's partition: the tensors that its _Send nodes send to other tasks.
#pragma once

#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Appends the edges to `edges`, except for mode, reason and slots, which PlaceEdges() sets.
void FindEdges(const tensorflow::Graph& partition, std::vector<Edge>* edges);

// What is known of an edge whose shape does not change.
struct Mark {
  std::string site;  // the operation that allocates its buffers in each step; empty if unknown
  bool in_loop = false;
};

// Stores marks on the _Send nodes. TensorFlow takes the nodes of a function's partition to the task
// that runs them, which is not told of the function otherwise.
void MarkEdges(const tensorflow::Graph& partition);
// Reads what MarkEdges() stored. Returns false if `send` has no mark.
bool MarkOf(const tensorflow::AttrSlice& send, Mark* mark);

}  // namespace rdma_transport::analyzer
