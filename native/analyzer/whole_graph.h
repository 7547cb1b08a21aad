// Analyzes a graph without a cluster: places and partitions it as TensorFlow would.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "analyzer/placement.h"
#include "analyzer/plan.h"
#include "base/status.h"

namespace rdma_transport::analyzer {

// What to analyze a graph for.
struct Request {
  std::vector<std::string> tasks;  // "/job:ps/task:0"
  std::string default_device;      // for nodes that request none; TensorFlow's choice if empty
  Limits limits;
};

// Analyzes a serialized GraphDef. Returns InvalidArgument, with a sentence that says what to do, if
// it cannot be analyzed. Time and memory are linear in the graph with its functions inlined, whose
// size graph_checks.h limits.
Status Analyze(std::string_view graph_def, const Request& request, Plan* plan);

}  // namespace rdma_transport::analyzer
