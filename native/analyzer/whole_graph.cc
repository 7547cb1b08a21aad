#include "analyzer/whole_graph.h"

#include <chrono>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "analyzer/lowering.h"
#include "analyzer/node_placement.h"
#include "analyzer/offsets.h"
#include "analyzer/partition_edges.h"
#include "analyzer/refusal.h"
#include "analyzer/shapes.h"
#include "analyzer/variables.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/graph/graph_partition.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

Status Split(tf::Graph* graph, const tf::FunctionLibraryDefinition& library, Plan* plan) {
  tf::PartitionOptions options;
  options.node_to_loc = [](const tf::Node* node) { return TaskOf(node->assigned_device_name()); };
  std::unordered_set<std::string> taken;
  for (const tf::Node* node : graph->nodes()) taken.insert(node->name());
  int64_t number = 0;
  options.new_name = [&taken, &number](const std::string& prefix) {
    std::string name;
    do {
      name = prefix + "/_" + std::to_string(number++);
    } while (!taken.insert(name).second);
    return name;
  };
  options.get_incarnation = [](const std::string&) { return uint64_t{1}; };
  options.flib_def = &library;
  std::unordered_map<std::string, tf::GraphDef> partitions;
  absl::Status status = tf::Partition(options, graph, &partitions);
  if (!status.ok()) return Refused("it cannot be split between tasks", status);
  std::map<std::string, tf::GraphDef*> ordered;
  for (auto& [task, partition] : partitions) ordered[task] = &partition;
  for (const auto& [task, partition] : ordered) {
    tf::Graph part(library);
    tf::GraphConstructorOptions import;
    import.allow_internal_ops = true;
    import.expect_device_spec = true;
    status = tf::ConvertGraphDefToGraph(import, std::move(*partition), &part);
    if (!status.ok()) return Refused("a task's part of it is refused", status);
    FindEdges(part, &plan->edges);
  }
  return OkStatus();
}

}  // namespace

Status Analyze(std::string_view graph_def, const Request& request, Plan* plan) {
  const auto start = std::chrono::steady_clock::now();
  if (request.tasks.empty()) return Invalid("the cluster has no tasks");
  LoweredGraph lowered;
  RDMA_RETURN_IF_ERROR(LowerGraph(graph_def, &lowered));
  tf::Graph* graph = lowered.graph.get();
  RDMA_RETURN_IF_ERROR(PlaceNodes(request.tasks, request.default_device, *lowered.library, graph));
  plan->nodes = graph->num_op_nodes();
  {
    const Shapes shapes(*graph);
    MarkShapes(shapes, graph);
    MarkOffsets(shapes, graph);
    plan->variables = FindVariables(*graph);
  }
  RDMA_RETURN_IF_ERROR(Split(graph, *lowered.library, plan));
  plan->arena_limit = request.limits.arena_bytes;
  PlaceEdges(request.limits, request.tasks, plan);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  plan->analysis_seconds = taken.count();
  return OkStatus();
}

}  // namespace rdma_transport::analyzer
