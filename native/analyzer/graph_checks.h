// Finds graphs for which TensorFlow would abort the process or need unbounded memory.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace rdma_transport::analyzer {

constexpr uint64_t kMaxNodes = 1'000'000;  // with all functions inlined

// Returns InvalidArgument for such graphs. Constants that declare far more than they hold become
// placeholders of the same shape. Must be called before TensorFlow sees the graph.
Status CheckGraph(tensorflow::GraphDef* graph);

}  // namespace rdma_transport::analyzer
