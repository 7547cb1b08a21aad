#include "analyzer/graph_checks.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "analyzer/plan.h"
#include "analyzer/refusal.h"
#include "tensorflow/core/framework/function.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

// Counts a graph's nodes with its functions inlined. Recursion has no end.
class ExpandedSize {
 public:
  explicit ExpandedSize(const tf::GraphDef& graph) {
    for (const tf::FunctionDef& function : graph.library().function()) {
      functions_[function.signature().name()] = &function;
    }
  }

  Status Of(const tf::GraphDef& graph, uint64_t* total) { return Sum(graph.node(), total, 0); }

 private:
  static constexpr int kDeepest = 200;

  template <typename Nodes>
  Status Sum(const Nodes& nodes, uint64_t* total, int depth) {
    *total = static_cast<uint64_t>(nodes.size());
    for (const tf::NodeDef& node : nodes) {
      RDMA_RETURN_IF_ERROR(Call(node.op(), total, depth));
      for (const auto& [name, value] : node.attr()) {
        if (value.has_func()) RDMA_RETURN_IF_ERROR(Call(value.func().name(), total, depth));
        for (const tf::NameAttrList& function : value.list().func()) {
          RDMA_RETURN_IF_ERROR(Call(function.name(), total, depth));
        }
      }
      if (*total > kMaxNodes) {
        return Invalid("the graph has more than " + std::to_string(kMaxNodes) +
                       " nodes when its functions are inlined; analyze a part of it");
      }
    }
    return OkStatus();
  }

  Status Call(const std::string& name, uint64_t* total, int depth) {
    const auto function = functions_.find(name);
    if (function == functions_.end()) return OkStatus();
    const auto known = sizes_.find(name);
    if (known != sizes_.end()) {
      *total += known->second;
      return OkStatus();
    }
    if (depth > kDeepest || !open_.insert(name).second) {
      return Invalid("function " + name + " calls itself, or is nested too deeply");
    }
    uint64_t size = 0;
    RDMA_RETURN_IF_ERROR(Sum(function->second->node_def(), &size, depth + 1));
    open_.erase(name);
    sizes_[name] = size;
    *total += size;
    return OkStatus();
  }

  std::unordered_map<std::string, const tf::FunctionDef*> functions_;
  std::unordered_map<std::string, uint64_t> sizes_;
  std::set<std::string> open_;
};

using Nodes = google::protobuf::RepeatedPtrField<tf::NodeDef>;

// TensorFlow aborts the process if a shape depends on a constant whose value has another type than
// its node declares.
template <typename Nodes>
Status CheckConstants(const Nodes& nodes) {
  for (const tf::NodeDef& node : nodes) {
    const auto type = node.attr().find("dtype");
    const auto value = node.attr().find("value");
    if (type == node.attr().end() || value == node.attr().end()) continue;
    if (!value->second.has_tensor() || value->second.tensor().dtype() == type->second.type()) {
      continue;
    }
    return Invalid("the constant " + node.name() + " has a value of a type other than its own");
  }
  return OkStatus();
}

// TensorFlow aborts the process if a loop's Merge does not have exactly two inputs.
Status CheckMerges(const Nodes& nodes) {
  std::unordered_map<std::string, const tf::NodeDef*> by_name;
  for (const tf::NodeDef& node : nodes) by_name[node.name()] = &node;
  for (const tf::NodeDef& node : nodes) {
    if (node.op() != "Merge" && node.op() != "RefMerge") continue;
    int inputs = 0;
    bool loop = false;
    for (const std::string& input : node.input()) {
      if (input.empty() || input[0] == '^') continue;
      ++inputs;
      const auto source = by_name.find(input.substr(0, input.find(':')));
      loop |= source != by_name.end() && (source->second->op() == "NextIteration" ||
                                          source->second->op() == "RefNextIteration");
    }
    if (loop && inputs != 2) {
      return Invalid("the loop's Merge " + node.name() + " has " + std::to_string(inputs) +
                     " inputs instead of two; the graph is corrupt");
    }
  }
  return OkStatus();
}

// TensorFlow aborts the process if a branch or a body takes or returns another number of tensors
// than the node that runs it.
class BranchCheck {
 public:
  explicit BranchCheck(const tf::FunctionDefLibrary& library) {
    for (const tf::FunctionDef& function : library.function()) {
      const tf::OpDef& signature = function.signature();
      arity_[signature.name()] = {Count(signature.input_arg()), Count(signature.output_arg())};
    }
  }

  Status Of(const Nodes& nodes) const {
    for (const tf::NodeDef& node : nodes) {
      const bool stateless = node.op().rfind("Stateless", 0) == 0;
      const std::string op = stateless ? node.op().substr(9) : node.op();
      if (op == "If" || op == "Case") {
        const Arity needed = {Types(node, "Tin"), Types(node, "Tout")};
        RDMA_RETURN_IF_ERROR(Compare(node, "then_branch", needed));
        RDMA_RETURN_IF_ERROR(Compare(node, "else_branch", needed));
        RDMA_RETURN_IF_ERROR(Compare(node, "branches", needed));
      } else if (op == "While") {
        const int state = Types(node, "T");
        RDMA_RETURN_IF_ERROR(Compare(node, "cond", {state, 1}));
        RDMA_RETURN_IF_ERROR(Compare(node, "body", {state, state}));
      } else if (op == "PartitionedCall" || op == "StatefulPartitionedCall") {
        RDMA_RETURN_IF_ERROR(Compare(node, "f", {Types(node, "Tin"), Types(node, "Tout")}));
      }
    }
    return OkStatus();
  }

 private:
  static constexpr int kUnknown = -1;  // an attribute has the number
  struct Arity {
    int in;
    int out;
  };

  template <typename Arguments>
  static int Count(const Arguments& arguments) {
    for (const tf::OpDef::ArgDef& argument : arguments) {
      if (!argument.number_attr().empty() || !argument.type_list_attr().empty()) return kUnknown;
    }
    return arguments.size();
  }

  static int Types(const tf::NodeDef& node, const char* name) {
    const auto found = node.attr().find(name);
    return found == node.attr().end() ? kUnknown : found->second.list().type_size();
  }

  Status Compare(const tf::NodeDef& node, const char* attribute, Arity needed) const {
    const auto found = node.attr().find(attribute);
    if (found == node.attr().end()) return OkStatus();
    RDMA_RETURN_IF_ERROR(Compare(node, found->second.func(), needed));
    for (const tf::NameAttrList& function : found->second.list().func()) {
      RDMA_RETURN_IF_ERROR(Compare(node, function, needed));
    }
    return OkStatus();
  }

  Status Compare(const tf::NodeDef& node, const tf::NameAttrList& function, Arity needed) const {
    const auto found = arity_.find(function.name());
    if (found == arity_.end()) return OkStatus();
    const auto differ = [](int has, int needs) {
      return has != kUnknown && needs != kUnknown && has != needs;
    };
    const Arity& has = found->second;
    if (!differ(has.in, needed.in) && !differ(has.out, needed.out)) return OkStatus();
    return Invalid(node.op() + " " + node.name() + " runs " + function.name() +
                   ", which takes or returns another number of tensors; the graph is corrupt");
  }

  std::unordered_map<std::string, Arity> arity_;
};

// Shape inference would write out in full a constant that gives few values for a large shape.
constexpr uint64_t kLargestConstant = uint64_t{1} << 24;

void TameConstants(Nodes* nodes) {
  for (tf::NodeDef& node : *nodes) {
    if (node.op() != "Const") continue;
    const auto value = node.attr().find("value");
    if (value == node.attr().end()) continue;
    const tf::TensorProto& tensor = value->second.tensor();
    uint64_t elements = 1;
    for (const auto& dim : tensor.tensor_shape().dim()) {
      elements = SaturatingMul(elements, static_cast<uint64_t>(std::max<int64_t>(dim.size(), 0)));
    }
    if (elements <= kLargestConstant || tensor.ByteSizeLong() >= elements) continue;
    tf::AttrValue shape;
    *shape.mutable_shape() = tensor.tensor_shape();
    node.set_op("Placeholder");
    node.mutable_attr()->erase("value");
    (*node.mutable_attr())["shape"] = std::move(shape);
  }
}

}  // namespace

Status CheckGraph(tf::GraphDef* graph) {
  if (graph->node_size() == 0) return Invalid("the graph has no nodes");
  uint64_t size = 0;
  RDMA_RETURN_IF_ERROR(ExpandedSize(*graph).Of(*graph, &size));
  const BranchCheck branches(graph->library());
  RDMA_RETURN_IF_ERROR(branches.Of(graph->node()));
  RDMA_RETURN_IF_ERROR(CheckMerges(graph->node()));
  RDMA_RETURN_IF_ERROR(CheckConstants(graph->node()));
  TameConstants(graph->mutable_node());
  for (tf::FunctionDef& function : *graph->mutable_library()->mutable_function()) {
    RDMA_RETURN_IF_ERROR(branches.Of(function.node_def()));
    RDMA_RETURN_IF_ERROR(CheckMerges(function.node_def()));
    RDMA_RETURN_IF_ERROR(CheckConstants(function.node_def()));
    TameConstants(function.mutable_node_def());
  }
  return OkStatus();
}

}  // namespace rdma_transport::analyzer
