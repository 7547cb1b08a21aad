#include "analyzer/offsets.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "analyzer/loops.h"
#include "analyzer/overlap.h"
#include "analyzer/packing.h"
#include "analyzer/sites.h"
#include "memory/slot_policy.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/graph/algorithm.h"

namespace rdma_transport::analyzer {
namespace {

namespace tf = tensorflow;

// Bounds the work per tensor. If more operations may use its buffer, it is in use until the end.
constexpr size_t kMaxUses = 256;
// Bounds the work per task: the product of its buffers and all their last uses.
constexpr size_t kMaxWork = size_t{1} << 28;

std::string MarkFor(const std::string& destination) {
  return "_rdma_transport_offsets" + destination;
}

struct Crossing {
  tf::Node* node;
  int output;
  std::string source;
  std::string destination;
  uint64_t bytes;       // of all buffers that are sent
  uint64_t slot_bytes;  // of one slot
  Site site;
  int64_t source_offset = -1;  // -1: unknown
  int64_t slots_offset = -1;
};

std::vector<Crossing> FindCrossings(const Shapes& shapes, const std::vector<bool>& in_loop,
                                    tf::Graph* graph) {
  std::vector<Crossing> found;
  for (tf::Node* node : graph->op_nodes()) {
    if (!Leaves(node)) continue;
    const std::string source = TaskOf(node->assigned_device_name());
    std::set<std::pair<int, std::string>> known;
    for (const tf::Edge* edge : node->out_edges()) {
      if (edge->IsControlEdge() || !edge->dst()->IsOp()) continue;
      const int output = edge->src_output();
      const std::string destination = TaskOf(edge->dst()->assigned_device_name());
      const tf::DataType dtype = tf::BaseType(node->output_type(output));
      if (destination == source || !tf::DataTypeCanUseMemcpy(dtype) ||
          !known.insert({output, destination}).second) {
        continue;
      }
      const auto bytes = BytesOf(shapes.Of(node, output), dtype);
      if (!bytes || *bytes == 0) continue;
      const uint64_t all = memory::BytesOfSlots(*bytes, memory::SlotsOfEdge(in_loop[node->id()]));
      const uint64_t slot = memory::BytesOfSlots(*bytes, 1);
      found.push_back(
          {node, output, source, destination, all, slot, FindOrigin(shapes, node, output).site});
    }
  }
  return found;
}

// The graph's operations in an order in which they can run, and how long they need their inputs.
class Order {
 public:
  Order(const tf::Graph& graph, const std::vector<bool>& in_loop) : in_loop_(in_loop) {
    const auto forward = [](const tf::Edge& edge) { return !edge.src()->IsNextIteration(); };
    std::vector<tf::Node*> order;
    tf::GetReversePostOrder(graph, &order, tf::NodeComparatorName(), forward);
    number_.assign(static_cast<size_t>(graph.num_node_ids()), 0);
    for (const tf::Node* node : order) {
      number_[node->id()] = static_cast<uint32_t>(operations_.size());
      Operation& operation = operations_.emplace_back();
      for (const tf::Edge* edge : node->in_edges()) {
        if (!forward(*edge)) continue;
        // A Merge takes the input that comes first.
        const bool any = node->IsMerge() && !edge->IsControlEdge();
        (any ? operation.after_any : operation.after).push_back(number_[edge->src()->id()]);
      }
      if (node->IsOp()) by_name_[node->name()] = node;
    }
  }

  const std::vector<Operation>& operations() const { return operations_; }

  // The buffers from which a tensor is sent are in use until their last use on any task.
  Lifetime OfSource(const Crossing& crossing) const {
    Lifetime lifetime;
    const auto site = by_name_.find(crossing.site.op);
    lifetime.always = crossing.site.kind != "kernel" || site == by_name_.end();
    if (lifetime.always) return lifetime;
    lifetime.first = number_[site->second->id()];
    FindUses(site->second, [](const tf::Edge&) { return true; }, &lifetime);
    return lifetime;
  }

  Lifetime OfSlots(const Crossing& crossing) const {
    Lifetime lifetime;
    lifetime.first = number_[crossing.node->id()];
    const auto arrives = [&crossing](const tf::Edge& edge) {
      return edge.src_output() == crossing.output &&
             TaskOf(edge.dst()->assigned_device_name()) == crossing.destination;
    };
    FindUses(crossing.node, arrives, &lifetime);
    return lifetime;
  }

 private:
  // Whether the node may keep its input when it has run. How often a loop runs is not known.
  bool Keeps(const tf::Node* node) const {
    if (in_loop_[node->id()]) return true;
    if (node->op_def().is_stateful()) return !UpdatesVariable(node);
    const auto& types = node->output_types();
    return std::any_of(types.begin(), types.end(), [](tf::DataType type) {
      return type == tf::DT_VARIANT || type == tf::DT_RESOURCE;
    });
  }

  static bool IsUsed(const tf::Node* node) {
    const auto& edges = node->out_edges();
    return std::any_of(edges.begin(), edges.end(), [](const tf::Edge* edge) {
      return !edge->IsControlEdge() && edge->dst()->IsOp();
    });
  }

  void FindUses(const tf::Node* from, const std::function<bool(const tf::Edge&)>& counts,
                Lifetime* lifetime) const {
    std::set<const tf::Node*> seen = {from};
    std::vector<const tf::Node*> stack = {from};
    while (!stack.empty()) {
      const tf::Node* node = stack.back();
      stack.pop_back();
      for (const tf::Edge* edge : node->out_edges()) {
        const tf::Node* user = edge->dst();
        if (edge->IsControlEdge() || !user->IsOp() || (node == from && !counts(*edge))) continue;
        if (!seen.insert(user).second) continue;
        if (Keeps(user) || seen.size() > kMaxUses) return lifetime->last.clear();
        // An operation that passes the buffer on runs before those that use it then.
        const bool passes = MayForward(user) && IsUsed(user);
        if (passes) stack.push_back(user);
        if (!passes) lifetime->last.push_back(number_[user->id()]);
      }
    }
  }

  const std::vector<bool>& in_loop_;
  std::vector<Operation> operations_;
  std::vector<uint32_t> number_;  // by node ID
  std::map<std::string, const tf::Node*> by_name_;
};

// The buffers of one task that share memory, and the field for the offset of each of its users.
struct Shared {
  std::vector<Lifetime> lifetimes;
  std::vector<uint64_t> sizes;
  std::vector<std::vector<int64_t*>> fields;

  size_t Add(Lifetime lifetime, uint64_t bytes) {
    lifetimes.push_back(std::move(lifetime));
    sizes.push_back(bytes);
    fields.emplace_back();
    return fields.size() - 1;
  }
  // Without an order, no buffers share memory.
  std::vector<uint64_t> Pack(const std::vector<Operation>& operations) const {
    size_t uses = 0;
    for (const Lifetime& lifetime : lifetimes) uses += lifetime.last.size();
    if (lifetimes.size() > kMaxOffsets || lifetimes.size() * uses > kMaxWork) return {};
    const Overlap overlap(operations, lifetimes);
    return analyzer::Pack(sizes, std::cref(overlap));
  }
};

}  // namespace

void MarkOffsets(const Shapes& shapes, tf::Graph* graph) {
  const std::vector<bool> in_loop = InLoops(*graph);
  std::vector<Crossing> crossings = FindCrossings(shapes, in_loop, graph);
  if (crossings.empty()) return;
  const Order order(*graph, in_loop);
  std::map<std::string, Shared> sources;
  std::map<std::string, Shared> slots;
  std::map<std::tuple<std::string, std::string, uint64_t>, size_t> sites;
  for (Crossing& crossing : crossings) {
    Shared& source = sources[crossing.source];
    // A tensor sent to several tasks is allocated once.
    const auto [site, made] =
        sites.try_emplace({crossing.source, crossing.site.op, crossing.bytes}, source.sizes.size());
    if (made || crossing.site.op.empty()) {
      site->second = source.Add(order.OfSource(crossing), crossing.bytes);
    }
    source.fields[site->second].push_back(&crossing.source_offset);
    Shared& destination = slots[crossing.destination];
    const size_t slot = destination.Add(order.OfSlots(crossing), crossing.slot_bytes);
    destination.fields[slot].push_back(&crossing.slots_offset);
  }
  for (auto* side : {&sources, &slots}) {
    for (const auto& [task, shared] : *side) {
      const std::vector<uint64_t> offsets = shared.Pack(order.operations());
      for (size_t i = 0; i < offsets.size(); ++i) {
        for (int64_t* field : shared.fields[i]) *field = static_cast<int64_t>(offsets[i]);
      }
    }
  }
  std::map<std::pair<tf::Node*, std::string>, std::vector<int64_t>> marks;
  for (const Crossing& crossing : crossings) {
    std::vector<int64_t>& mark = marks[{crossing.node, crossing.destination}];
    mark.resize(2 * static_cast<size_t>(crossing.node->num_outputs()), -1);
    mark[2 * crossing.output] = crossing.source_offset;
    mark[2 * crossing.output + 1] = crossing.slots_offset;
  }
  for (auto& [key, mark] : marks) key.first->AddAttr(MarkFor(key.second), mark);
}

Offsets OffsetsOf(const tf::Node* node, int output, const std::string& destination) {
  std::vector<int64_t> mark;
  const size_t at = 2 * static_cast<size_t>(output);
  if (!tf::TryGetNodeAttr(node->attrs(), MarkFor(destination), &mark) || at + 1 >= mark.size()) {
    return {};
  }
  const auto known = [](int64_t offset) {
    return offset < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(offset));
  };
  return {known(mark[at]), known(mark[at + 1])};
}

void MarkCrossing(tf::Graph* graph) {
  for (const tf::Node* node : graph->op_nodes()) {
    if (!Leaves(node)) continue;
    const Shapes shapes(*graph);
    MarkShapes(shapes, graph);
    return MarkOffsets(shapes, graph);
  }
}

}  // namespace rdma_transport::analyzer
