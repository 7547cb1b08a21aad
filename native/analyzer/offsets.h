// How crossing tensors could share memory, by the order in which a step runs the whole graph.
#pragma once

#include <string>

#include "analyzer/plan.h"
#include "analyzer/shapes.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// A task that sends or receives more tensors has no offsets for these. They would take seconds to
// compute.
constexpr size_t kMaxOffsets = 8192;

// Stores Edge::offsets on nodes whose outputs leave their task: a task that sees only its own
// partition does not know what runs on others. Must be called on the placed graph.
void MarkOffsets(const Shapes& shapes, tensorflow::Graph* graph);
// Returns what MarkOffsets() stored for an output that `destination`, a task, needs.
Offsets OffsetsOf(const tensorflow::Node* node, int output, const std::string& destination);

// Stores on nodes all that a task needs to know of other tasks: shapes and offsets.
void MarkCrossing(tensorflow::Graph* graph);

}  // namespace rdma_transport::analyzer
