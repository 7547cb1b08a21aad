#include "analyzer/lowering.h"

#include <limits>
#include <utility>
#include <vector>

#include "analyzer/graph_checks.h"
#include "analyzer/refusal.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/lower_functional_ops.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/graph_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/public/session_options.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

Status Import(std::string_view bytes, LoweredGraph* imported) {
  tf::GraphDef graph_def;
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max()) ||
      !graph_def.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Invalid("the data is not a GraphDef: the file is corrupt or has another format");
  }
  RDMA_RETURN_IF_ERROR(CheckGraph(&graph_def));
  absl::Status status = tf::AddDefaultAttrsToGraphDef(&graph_def, *tf::OpRegistry::Global(), 0);
  imported->library = std::make_unique<tf::FunctionLibraryDefinition>(tf::OpRegistry::Global(),
                                                                      graph_def.library());
  imported->graph = std::make_unique<tf::Graph>(*imported->library);
  tf::GraphConstructorOptions options;
  options.allow_internal_ops = true;
  options.expect_device_spec = false;
  status = tf::ConvertGraphDefToGraph(options, std::move(graph_def), imported->graph.get());
  if (!status.ok()) return Refused("TensorFlow refuses the graph", status);
  return OkStatus();
}

bool HasNoUser(const tf::Node* node) {
  for (const tf::Node* user : node->out_nodes()) {
    if (user->IsOp()) return false;
  }
  return true;
}

// Handles what lowering leaves beside the inlined bodies: a fetchable node with the call's name,
// and one Identity per result, which requests no device.
void TidyInlined(int first_new, tf::Graph* graph) {
  for (tf::Node* node : graph->op_nodes()) {
    if (node->id() >= first_new && node->type_string() == "IdentityN" && HasNoUser(node)) {
      graph->RemoveNode(node);
    }
  }
  std::vector<tf::Node*> order;
  tf::GetReversePostOrder(*graph, &order);
  for (tf::Node* node : order) {
    if (node->id() < first_new || !node->IsIdentity() || !node->requested_device().empty()) {
      continue;
    }
    // A result stays on the device that computed it.
    const tf::Edge* input = nullptr;
    if (node->input_edge(0, &input).ok()) {
      node->set_requested_device(input->src()->requested_device());
    }
  }
}

}  // namespace

Status LowerGraph(std::string_view graph_def, LoweredGraph* lowered) {
  RDMA_RETURN_IF_ERROR(Import(graph_def, lowered));
  tf::SessionOptions session;
  session.config.mutable_graph_options()->mutable_optimizer_options()->set_do_function_inlining(
      true);
  tf::GraphOptimizationPassOptions options;
  options.session_options = &session;
  options.graph = &lowered->graph;
  options.flib_def = lowered->library.get();
  const int first_new = lowered->graph->num_node_ids();
  const absl::Status status = tf::LowerFunctionalOpsPass().Run(options);
  if (!status.ok()) return Refused("its functions cannot be inlined", status);
  TidyInlined(first_new, lowered->graph.get());
  return OkStatus();
}

}  // namespace rdma_transport::analyzer
