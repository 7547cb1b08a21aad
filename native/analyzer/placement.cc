#include "analyzer/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "memory/slot_policy.h"

namespace rdma_transport::analyzer {
namespace {

constexpr uint64_t kAlignment = 64;

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
        "its shape is not known before the step; it becomes static once it has stayed the same";
    return false;
  }
  if (*edge->bytes <= limits.inline_bytes) {
    edge->mode = EdgeMode::kInline;
    edge->reason = "at most " + Sized(limits.inline_bytes) + ": it rides in the notification";
    return false;
  }
  return true;
}

}  // namespace

void PlaceEdges(const Limits& limits, const std::vector<std::string>& tasks, Plan* plan) {
  std::map<std::string, Task> by_name;
  std::set<std::tuple<std::string, std::string, uint64_t>> sites;  // sites counted already
  for (const std::string& name : tasks) by_name[name].name = name;
  std::vector<size_t> order(plan->edges.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [plan](size_t a, size_t b) {
    return plan->edges[a].bytes.value_or(0) < plan->edges[b].bytes.value_or(0);
  });
  for (const size_t index : order) {
    Edge& edge = plan->edges[index];
    const std::string from = TaskOf(edge.source_device);
    const std::string to = TaskOf(edge.destination_device);
    Task& source = by_name[from];
    Task& destination = by_name[to];
    source.name = from;
    destination.name = to;
    const bool placeable = Classify(limits, &edge);
    if (edge.bytes) {
      source.sent_bytes = SaturatingAdd(source.sent_bytes, *edge.bytes);
      destination.received_bytes = SaturatingAdd(destination.received_bytes, *edge.bytes);
    }
    if (!placeable) continue;
    const uint32_t slots = memory::SlotsOfEdge(edge.in_loop);
    const uint64_t rounded = SaturatingAdd(*edge.bytes, kAlignment - 1) / kAlignment * kAlignment;
    const uint64_t needed = SaturatingMul(slots, rounded);
    // A tensor sent to several tasks is allocated once.
    const auto site = std::make_tuple(from, edge.site.op, *edge.bytes);
    const bool shared = edge.site.kind != "unknown" && sites.count(site) != 0;
    const std::pair<Task*, uint64_t> uses[] = {{&source, source.source_bytes},
                                               {&destination, destination.slot_bytes}};
    for (const auto& [task, used] : uses) {
      if (task == &source && shared) continue;
      if (needed <= limits.arena_bytes - std::min(limits.arena_bytes, used)) continue;
      edge.mode = EdgeMode::kDynamic;
      edge.reason = "it did not fit: " + std::to_string(slots) + " slots need " + Sized(needed) +
                    ", and " + task->name + " has " +
                    Sized(limits.arena_bytes - std::min(limits.arena_bytes, used)) + " of " +
                    Sized(limits.arena_bytes) + " left (RDMA_TRANSPORT_ARENA_SIZE)";
    }
    if (!edge.reason.empty()) continue;
    edge.mode = EdgeMode::kStatic;
    edge.reason = "its shape is known before the step";
    edge.slots = slots;
    edge.slot_bytes = needed;
    if (sites.insert(site).second) source.source_bytes += needed;
    destination.slot_bytes += needed;
  }
  for (auto& [name, task] : by_name) plan->tasks.push_back(task);
}

}  // namespace rdma_transport::analyzer
