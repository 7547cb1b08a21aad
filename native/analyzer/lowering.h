// Converts a serialized GraphDef to a graph as the executors see it: functions inlined, control
// flow lowered.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// `graph` refers to `library`.
struct LoweredGraph {
  std::unique_ptr<tensorflow::FunctionLibraryDefinition> library;
  std::unique_ptr<tensorflow::Graph> graph;
};

// Returns InvalidArgument if TensorFlow rejects the graph.
Status LowerGraph(std::string_view graph_def, LoweredGraph* lowered);

}  // namespace rdma_transport::analyzer
