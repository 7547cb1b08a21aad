// Assigns each node to a device of the cluster.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Runs TensorFlow's own placer with a virtual CPU for each of `tasks`. Nodes that request an
// accelerator are then assigned to it, whether or not this TensorFlow has kernels for it.
// `default_device` completes the devices that nodes request; may be empty. Returns InvalidArgument
// if placement fails.
Status PlaceNodes(const std::vector<std::string>& tasks, const std::string& default_device,
                  const tensorflow::FunctionLibraryDefinition& library, tensorflow::Graph* graph);

}  // namespace rdma_transport::analyzer
