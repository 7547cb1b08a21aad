#include "analyzer/variables.h"

#include <set>
#include <string>
#include <unordered_set>

#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

bool HoldsVariable(const tf::Node* node) {
  const std::string& type = node->type_string();
  return type == "VarHandleOp" || type == "VariableV2" || type == "Variable";
}

bool HandsOn(const tf::Node* node) {
  const std::string& type = node->type_string();
  return type == "ReadVariableOp" || type == "Identity" || type == "Switch" || type == "Enter" ||
         type == "RefIdentity";
}

// Follows the variable's value to the operations that use it.
void FindUses(const tf::Node* variable, Variable* found) {
  std::set<std::string> readers;
  std::unordered_set<const tf::Node*> seen = {variable};
  std::vector<const tf::Node*> stack = {variable};
  while (!stack.empty()) {
    const tf::Node* node = stack.back();
    stack.pop_back();
    for (const tf::Edge* edge : node->out_edges()) {
      const tf::Node* user = edge->dst();
      if (edge->IsControlEdge() || !user->IsOp()) continue;
      const bool value = node != variable || user->type_string() == "ReadVariableOp" ||
                         tf::IsRefType(variable->output_type(0));
      if (!value) continue;  // an update, not a read
      const std::string task = TaskOf(user->assigned_device_name());
      if (task != found->task) readers.insert(task);
      if (HandsOn(user) && seen.insert(user).second) stack.push_back(user);
    }
  }
  found->readers = static_cast<int>(readers.size());
}

}  // namespace

std::vector<Variable> FindVariables(const tf::Graph& graph) {
  std::vector<Variable> variables;
  for (const tf::Node* node : graph.op_nodes()) {
    if (!HoldsVariable(node)) continue;
    Variable variable;
    tf::DataType dtype = tf::DT_INVALID;
    tf::PartialTensorShape shape;
    if (!tf::TryGetNodeAttr(node->attrs(), "dtype", &dtype) ||
        !tf::GetNodeAttr(node->attrs(), "shape", &shape).ok() || shape.unknown_rank()) {
      continue;
    }
    variable.name = node->name();
    variable.task = TaskOf(node->assigned_device_name());
    variable.dtype = NumpyName(tf::DataTypeString(dtype));
    const auto dims = shape.dim_sizes();
    variable.shape.assign(dims.begin(), dims.end());
    if (shape.IsFullyDefined()) {
      variable.bytes = static_cast<uint64_t>(tf::DataTypeSize(dtype));
      for (const int64_t dim : dims) {
        variable.bytes = SaturatingMul(variable.bytes, static_cast<uint64_t>(dim));
      }
    }
    FindUses(node, &variable);
    variables.push_back(std::move(variable));
  }
  return variables;
}

}  // namespace rdma_transport::analyzer
