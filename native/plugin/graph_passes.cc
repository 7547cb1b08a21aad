#include "plugin/graph_passes.h"

#include "analyzer/offsets.h"
#include "analyzer/partition_edges.h"
#include "plugin/graph_plans.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

thread_local EdgeCollector* t_collector = nullptr;

// Late, so that the pass sees the graph that will run.
constexpr int kPhase = 1000;

class WholeGraphPass final : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (PlanningRuntime() != nullptr && options.graph != nullptr)
      analyzer::MarkCrossing(options.graph->get());
    return absl::OkStatus();
  }
};

class PartitionPass final : public tf::GraphOptimizationPass {
 public:
  absl::Status Run(const tf::GraphOptimizationPassOptions& options) override {
    if (PlanningRuntime() == nullptr || options.partition_graphs == nullptr) {
      return absl::OkStatus();
    }
    for (const auto& [device, graph] : *options.partition_graphs) {
      if (t_collector != nullptr) {
        analyzer::FindEdges(*graph, &t_collector->edges());
      } else if (options.is_function_graph) {
        analyzer::MarkEdges(*graph);
      }
    }
    return absl::OkStatus();
  }
};

[[maybe_unused]] const bool passes_registered = [] {
  auto* registry = tf::OptimizationPassRegistry::Global();
  registry->Register(tf::OptimizationPassRegistry::POST_REWRITE_FOR_EXEC, kPhase,
                     std::make_unique<WholeGraphPass>());
  registry->Register(tf::OptimizationPassRegistry::POST_PARTITIONING, kPhase,
                     std::make_unique<PartitionPass>());
  return true;
}();

}  // namespace

EdgeCollector::EdgeCollector() : outer_(t_collector) { t_collector = this; }
EdgeCollector::~EdgeCollector() { t_collector = outer_; }

}  // namespace rdma_transport
