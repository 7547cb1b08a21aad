// Graphs that TensorFlow would end the process for, or need unbounded memory for.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensorflow/core/framework/graph.pb.h"

namespace rdma_transport::analyzer {

constexpr uint64_t kMaxNodes = 1'000'000;  // with all functions inlined

// Refuses them, but for constants that declare far more than they hold: they become placeholders of
// the same shape. To be called before TensorFlow sees the graph.
Status CheckGraph(tensorflow::GraphDef* graph);

}  // namespace rdma_transport::analyzer
