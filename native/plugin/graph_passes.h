// The graph analyzer inside TensorFlow: one pass on the master's whole graph leaves the shapes on
// what crosses between tasks, another one on each task's partition finds the edges of that task.
#pragma once

#include <vector>

#include "analyzer/plan.h"

namespace rdma_transport {

// While one lives on a thread, the partitions that TensorFlow prepares there are analysed.
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
