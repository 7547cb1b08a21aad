// Which device of the cluster each node is on.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/graph/graph.h"

namespace rdma_transport::analyzer {

// Asks TensorFlow's own placer, with an imagined CPU for each of `tasks`. `default_device`
// completes what nodes ask for; may be empty.
Status PlaceNodes(const std::vector<std::string>& tasks, const std::string& default_device,
                  const tensorflow::FunctionLibraryDefinition& library, tensorflow::Graph* graph);

}  // namespace rdma_transport::analyzer
