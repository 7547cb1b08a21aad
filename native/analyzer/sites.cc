#include "analyzer/sites.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

using OpTypes = std::unordered_set<std::string>;

OpTypes Words(const char* text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), std::istream_iterator<std::string>()};
}

// The output is always the first input's buffer, even if it is shared.
const OpTypes& Aliases() {
  static const auto* types = new OpTypes(
      Words("Identity Reshape ExpandDims Squeeze StopGradient Snapshot EnsureShape Bitcast Enter "
            "Exit Switch NextIteration LoopCond RefIdentity RefEnter RefExit RefSwitch "
            "PlaceholderWithDefault PreventGradient RefNextIteration _HostCast CheckNumerics"));
  return *types;
}

// Element-wise: the kernel reuses an input's buffer if no other operation needs it.
const OpTypes& InPlace() {
  static const auto* types = new OpTypes(
      Words("Abs Add AddN AddV2 BiasAdd Ceil Cos Div DivNoNan Elu EluGrad Exp Expm1 Floor Log "
            "Log1p Maximum Minimum Mul Neg Pow RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad "
            "Rsqrt RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Softplus SoftplusGrad "
            "Sqrt SqrtGrad Square SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy ZerosLike"));
  return *types;
}

const std::unordered_map<std::string, std::string>& Ends() {
  static const auto* kinds = new std::unordered_map<std::string, std::string>{
      {"Const", "constant"},         {"Placeholder", "feed"},
      {"PlaceholderV2", "feed"},     {"VarHandleOp", "variable"},
      {"VariableV2", "variable"},    {"Variable", "variable"},
      {"_VarHandlesOp", "variable"}, {"TemporaryVariable", "variable"},
      {"_Arg", "function argument"}, {"_DeviceArg", "function argument"},
      {"_Recv", "received"},         {"_HostRecv", "received"}};
  return *kinds;
}

bool IsCall(const tf::Node* node) {
  return node->IsFunctionCall() || node->IsIfNode() || node->IsWhileNode() || node->IsCaseNode();
}

int Consumers(const tf::Node* node, int output) {
  int count = 0;
  for (const tf::Edge* edge : node->out_edges()) count += edge->src_output() == output ? 1 : 0;
  return count;
}

const tf::Edge* InputEdge(const tf::Node* node, int index) {
  const tf::Edge* edge = nullptr;
  return node->input_edge(index, &edge).ok() ? edge : nullptr;
}

// Bounds the work per edge. The sites of longer chains are only known when a step runs.
constexpr size_t kLongestWalk = 10000;

class Walk {
 public:
  explicit Walk(const Shapes& shapes) : shapes_(shapes) {}

  Origin From(const tf::Node* node, int output) {
    Origin origin;
    origin.mutability = "immutable";
    for (size_t steps = 0; steps < kLongestWalk; ++steps) {
      const tf::Edge* next = nullptr;
      if (seen_.insert({node, output}).second) {
        next = Step(node, output, &origin);
        if (next == nullptr) break;
        origin.site.through.push_back(node->type_string());
        if (Crosses(*next)) {
          origin.site.op = next->src()->name();
          origin.site.kind = "received";
          break;
        }
      } else if (!entries_.empty()) {
        // The loop's body allocates nothing, so the buffer is the one that entered the loop.
        next = entries_.back().edge;
        origin.site.through.resize(entries_.back().passed);
        entries_.pop_back();
      } else {
        break;
      }
      node = next->src();
      output = next->src_output();
    }
    if (taker_ != nullptr && origin.site.kind != "kernel") {
      // That buffer must not be overwritten, so the operation that would have reused it allocates
      // its own.
      origin.site = {};
      End(taker_, &origin);
      origin.mutability = "immutable";
      origin.site.through = passed_before_taker_;
    }
    std::reverse(origin.site.through.begin(), origin.site.through.end());
    return origin;
  }

 private:
  struct Entry {
    const tf::Edge* edge;
    size_t passed;
  };

  // Returns the edge to follow, or null if `origin` is complete.
  const tf::Edge* Step(const tf::Node* node, int output, Origin* origin) {
    const std::string& type = node->type_string();
    if (type == "ReadVariableOp") {
      origin->mutability = "variable";
      return InputEdge(node, 0);
    }
    if (type == "IdentityN") return InputEdge(node, output);
    if (Aliases().count(type) != 0) return InputEdge(node, 0);
    // An update of a reference variable forwards the variable.
    if (node->num_inputs() > 0 && tf::IsRefType(node->output_type(output)) &&
        tf::IsRefType(node->input_type(0))) {
      return InputEdge(node, 0);
    }
    if (type == "Merge" || type == "RefMerge") return Merge(node, origin);
    if (InPlace().count(type) != 0) {
      const tf::Edge* taken = TakenInput(node, output);
      if (taken != nullptr) {
        taker_ = node;
        passed_before_taker_ = origin->site.through;
        return taken;
      }
    }
    End(node, origin);
    return nullptr;
  }

  // A loop's value comes from outside first, and then from its body. A conditional's comes from
  // either branch.
  const tf::Edge* Merge(const tf::Node* node, Origin* origin) {
    const tf::Edge* outside = nullptr;
    const tf::Edge* body = nullptr;
    int others = 0;
    for (const tf::Edge* edge : node->in_edges()) {
      if (edge->IsControlEdge()) continue;
      if (edge->src()->IsNextIteration()) {
        body = edge;
      } else {
        outside = edge;
        ++others;
      }
    }
    if (body != nullptr) {
      if (outside != nullptr) entries_.push_back({outside, origin->site.through.size() + 1});
      return body;
    }
    if (others == 1) return outside;
    End(node, origin);
    origin->site.kind = "unknown";
    return nullptr;
  }

  // Returns the input whose buffer the kernel will reuse for its output if it may overwrite it.
  const tf::Edge* TakenInput(const tf::Node* node, int output) {
    const Shape shape = shapes_.Of(node, output);
    if (!shape) return nullptr;
    for (int i = 0; i < node->num_inputs(); ++i) {
      const tf::Edge* edge = InputEdge(node, i);
      if (edge == nullptr) continue;
      if (edge->src()->output_type(edge->src_output()) != node->output_type(output)) continue;
      if (shapes_.Of(edge->src(), edge->src_output()) == shape && IsFree(edge)) return edge;
    }
    return nullptr;
  }

  // Returns whether only the edge's destination needs the buffer, under any of its names.
  static bool IsFree(const tf::Edge* edge) {
    for (size_t steps = 0; steps < kLongestWalk; ++steps) {
      const tf::Node* source = edge->src();
      const std::string& type = source->type_string();
      if (type == "ReadVariableOp" || Ends().count(type) != 0) return false;
      if (Consumers(source, edge->src_output()) != 1) return false;
      if (Aliases().count(type) == 0) return true;
      edge = InputEdge(source, 0);
      if (edge == nullptr) return false;
    }
    return false;
  }

  static void End(const tf::Node* node, Origin* origin) {
    if (node->type_string() == "VarHandleOp") {
      for (const tf::Edge* edge : node->out_edges()) {
        if (edge->dst_input() == 0 && UpdatesVariable(edge->dst())) {
          origin->site.updates.push_back(edge->dst()->name());
        }
      }
    }
    origin->site.op = node->name();
    origin->site.type = node->type_string();
    const auto end = Ends().find(node->type_string());
    if (end != Ends().end()) {
      origin->site.kind = end->second;
      if (node->type_string() == "VariableV2" || node->type_string() == "Variable") {
        origin->mutability = "reference variable";
      }
    } else {
      origin->site.kind = IsCall(node) ? "unknown" : "kernel";
    }
  }

  const Shapes& shapes_;
  const tf::Node* taker_ = nullptr;  // the last operation passed that reuses an input's buffer
  std::vector<std::string> passed_before_taker_;
  std::vector<Entry> entries_;  // of the enclosing loops, not followed yet
  std::set<std::pair<const tf::Node*, int>> seen_;
};

// The output is a part of an input's buffer, or all of it in special cases.
const std::unordered_set<std::string>& Parts() {
  static const auto* types = new std::unordered_set<std::string>{
      "Slice", "StridedSlice", "Split", "SplitV",      "Unpack", "Pack",     "ConcatV2", "Concat",
      "Cast",  "Tile",         "Pad",   "BroadcastTo", "Merge",  "RefMerge", "Transpose"};
  return *types;
}

}  // namespace

bool MayForward(const tf::Node* node) {
  const std::string& type = node->type_string();
  return type == "IdentityN" || Aliases().count(type) != 0 || InPlace().count(type) != 0 ||
         Parts().count(type) != 0;
}

bool UpdatesVariable(const tf::Node* node) {
  const std::string& type = node->type_string();
  return type.rfind("ResourceApply", 0) == 0 || type.rfind("ResourceSparseApply", 0) == 0 ||
         type.rfind("ResourceScatter", 0) == 0 || type == "AssignAddVariableOp" ||
         type == "AssignSubVariableOp";
}

Origin FindOrigin(const Shapes& shapes, const tf::Node* node, int output) {
  return Walk(shapes).From(node, output);
}

}  // namespace rdma_transport::analyzer
