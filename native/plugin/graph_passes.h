// The graph analyzer inside TensorFlow. One pass on the master's whole graph stores shapes and
// offsets on nodes whose outputs cross between tasks; another on each task's partition finds that
// task's edges. The task that instantiates a function has the partitions of all tasks and marks
// their _Send nodes.
#pragma once

#include <vector>

#include "analyzer/plan.h"

namespace rdma_transport {

// While one exists on a thread, the partitions that TensorFlow prepares there are analyzed.
class EdgeCollector {
 public:
  EdgeCollector();
  ~EdgeCollector();
  EdgeCollector(const EdgeCollector&) = delete;
  EdgeCollector& operator=(const EdgeCollector&) = delete;

  std::vector<analyzer::Edge>& edges() { return edges_; }

 private:
  EdgeCollector* const outer_;
  std::vector<analyzer::Edge> edges_;
};

}  // namespace rdma_transport
