#include "analyzer/placement.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "memory/slot_policy.h"

namespace rdma_transport::analyzer {
namespace {

std::string Sized(uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

// Returns true if the edge may become static.
bool Classify(const Limits& limits, Edge* edge) {
  if (edge->control) {
    edge->mode = EdgeMode::kInline;
    edge->bytes = 0;
    edge->reason = "a control dependency, which carries no bytes";
    return false;
  }
  if (edge->dtype_name == "string" || edge->dtype_name == "variant" ||
      edge->dtype_name == "resource") {
    edge->mode = EdgeMode::kGrpc;
    edge->bytes.reset();
    edge->reason = "a " + edge->dtype_name + " tensor has no plain bytes; it falls back to gRPC";
    return false;
  }
  if (!edge->bytes) {
    edge->mode = EdgeMode::kDynamic;
    edge->reason =
        "its shape is not known before the step; it becomes static for shapes it carries often";
    return false;
  }
  if (*edge->bytes <= limits.inline_bytes) {
    edge->mode = EdgeMode::kInline;
    edge->reason = "at most " + Sized(limits.inline_bytes) + ": it rides in the notification";
    return false;
  }
  return true;
}

// The memory that a task needs for the tensors that it sends, or for its slots.
class Needs {
 public:
  void Add(uint64_t bytes, std::optional<uint64_t> offset) {
    sum_ = SaturatingAdd(sum_, bytes);
    if (offset) {
      shared_ = std::max(shared_, SaturatingAdd(*offset, bytes));
    } else {
      unordered_ = SaturatingAdd(unordered_, bytes);
    }
  }
  uint64_t sum() const { return sum_; }
  uint64_t peak() const { return std::min(sum_, SaturatingAdd(shared_, unordered_)); }

 private:
  uint64_t sum_ = 0;
  uint64_t shared_ = 0;  // the end of the memory that is shared
  uint64_t unordered_ = 0;
};

// The edges of one size from one task, which share their slots.
struct Pool {
  uint32_t edges = 0;
  uint32_t slots = 1;  // of the edge that needs most

  void Add(const Edge& edge) {
    ++edges;
    slots = std::max(slots, memory::SlotsOfEdge(edge.in_loop));
  }
};

// What all edges of a task need.
class TaskNeeds {
 public:
  // What the slots take more if the edge is received, too.
  uint64_t MoreSlots(const Edge& edge) const {
    const auto found = pools_.find(PoolOf(edge));
    Pool pool = found == pools_.end() ? Pool() : found->second;
    const uint32_t before = memory::SlotsOfPool(pool.edges, pool.slots);
    pool.Add(edge);
    return memory::BytesOfSlots(*edge.bytes, memory::SlotsOfPool(pool.edges, pool.slots) - before);
  }
  void Receive(const Edge& edge) {
    const uint64_t more = MoreSlots(edge);
    // One slot for the edge. What is beyond that is for a loop's iterations and never shared.
    const uint64_t own = std::min(more, memory::BytesOfSlots(*edge.bytes, 1));
    slots.Add(own, edge.offsets.slots);
    slots.Add(more - own, std::nullopt);
    pools_[PoolOf(edge)].Add(edge);
  }
  void Send(const Edge& edge, uint64_t bytes) {
    if (!Allocates(edge)) return;
    if (edge.site.kind != "unknown" && edge.site.kind != "staged") {
      sites_.insert({edge.site.op, *edge.bytes});
    }
    sources.Add(bytes, edge.offsets.source);
  }
  // A tensor sent to several tasks is allocated once.
  bool Allocates(const Edge& edge) const { return sites_.count({edge.site.op, *edge.bytes}) == 0; }

  Needs slots;
  Needs sources;

 private:
  static std::pair<std::string, uint64_t> PoolOf(const Edge& edge) {
    return {TaskOf(edge.source_device), *edge.bytes};
  }

  std::set<std::pair<std::string, uint64_t>> sites_;
  std::map<std::pair<std::string, uint64_t>, Pool> pools_;
};

uint64_t BytesOfSlots(const Edge& edge) {
  return memory::BytesOfSlots(*edge.bytes, memory::SlotsOfEdge(edge.in_loop));
}

// Whether the `needed` bytes fit beside those that `task` has in use. If not, the edge is dynamic.
bool Fits(const Limits& limits, const std::string& task, uint64_t used, uint64_t needed,
          Edge* edge) {
  const uint64_t left = limits.arena_bytes - std::min(limits.arena_bytes, used);
  if (needed <= left) return true;
  edge->mode = EdgeMode::kDynamic;
  edge->reason = "it did not fit: its slots need " + Sized(needed) + ", and " + task + " has " +
                 Sized(left) + " of " + Sized(limits.arena_bytes) +
                 " left (RDMA_TRANSPORT_ARENA_SIZE)";
  return false;
}

}  // namespace

void PlaceEdges(const Limits& limits, const std::vector<std::string>& tasks, Plan* plan) {
  std::map<std::string, Task> by_name;
  for (const std::string& name : tasks) by_name[name].name = name;
  std::vector<Edge*> order;
  for (Edge& edge : plan->edges) {
    Task& source = by_name[TaskOf(edge.source_device)];
    Task& destination = by_name[TaskOf(edge.destination_device)];
    source.name = TaskOf(edge.source_device);
    destination.name = TaskOf(edge.destination_device);
    const bool placeable = Classify(limits, &edge);
    if (edge.bytes) {
      source.sent_bytes = SaturatingAdd(source.sent_bytes, *edge.bytes);
      destination.received_bytes = SaturatingAdd(destination.received_bytes, *edge.bytes);
    }
    if (placeable) order.push_back(&edge);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Edge* a, const Edge* b) { return *a->bytes < *b->bytes; });
  std::map<std::string, TaskNeeds> all;
  for (const Edge* edge : order) {
    all[TaskOf(edge->source_device)].Send(*edge, BytesOfSlots(*edge));
    all[TaskOf(edge->destination_device)].Receive(*edge);
  }
  std::map<std::string, TaskNeeds> placed;
  for (Edge* edge : order) {
    const std::string from = TaskOf(edge->source_device);
    const std::string to = TaskOf(edge->destination_device);
    TaskNeeds& source = placed[from];
    TaskNeeds& destination = placed[to];
    const bool sent = all[from].sources.peak() <= limits.arena_bytes || !source.Allocates(*edge) ||
                      Fits(limits, from, source.sources.sum(), BytesOfSlots(*edge), edge);
    const bool received =
        all[to].slots.peak() <= limits.arena_bytes ||
        Fits(limits, to, destination.slots.sum(), destination.MoreSlots(*edge), edge);
    if (!sent || !received) continue;
    edge->mode = EdgeMode::kStatic;
    edge->reason = "its shape is known before the step";
    edge->slots = memory::SlotsOfEdge(edge->in_loop);
    edge->slot_bytes = BytesOfSlots(*edge);
    source.Send(*edge, edge->slot_bytes);
    destination.Receive(*edge);
  }
  for (auto& [name, task] : by_name) {
    const TaskNeeds& needs = placed[name];
    task.slot_bytes = needs.slots.sum();
    task.slot_peak_bytes = needs.slots.peak();
    task.source_bytes = needs.sources.sum();
    task.source_peak_bytes = needs.sources.peak();
    plan->tasks.push_back(task);
  }
}

}  // namespace rdma_transport::analyzer
