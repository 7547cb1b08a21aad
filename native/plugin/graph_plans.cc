#include "plugin/graph_plans.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analyzer/placement.h"
#include "plugin/accelerators.h"
#include "plugin/device_memory.h"
#include "plugin/device_names.h"
#include "protocol/process.h"

namespace rdma_transport {
namespace {

analyzer::Limits LimitsOf(const Runtime& runtime) {
  const uint64_t arena = runtime.arena()->Stats().limit_bytes;
  const uint64_t planned = runtime.slots()->PromisedBytes();
  return {arena - std::min(arena, planned), runtime.settings().inline_max};
}

PlannedEdge ToPlanned(const Runtime& runtime, const analyzer::Edge& edge) {
  PlannedEdge planned;
  planned.spec.key = edge.key;
  if (edge.mode == analyzer::EdgeMode::kDynamic) return planned;  // may be promoted later
  planned.spec = {edge.key, static_cast<uint32_t>(edge.dtype), *edge.shape, *edge.bytes};
  planned.slots = edge.slots;
  planned.site = edge.site.op + (edge.site.kind == "kernel" ? "" : " (" + edge.site.kind + ")");
  if (!runtime.settings().zero_copy || *edge.bytes <= runtime.settings().arena_min_tensor) {
    return planned;
  }
  if (edge.site.kind == "staged") {
    planned.pools.push_back(
        runtime.slots()->Reserve(StagingSite(edge.key), *edge.bytes, edge.slots));
  } else if (edge.site.kind == "kernel") {
    planned.pools.push_back(runtime.slots()->Reserve(edge.site.op, *edge.bytes, edge.slots));
  } else if (edge.site.kind == "variable" && edge.site.updates.size() == 1) {
    // The variable's buffer, and the one that an update allocates while the first is being read,
    // take turns.
    planned.pools.push_back(
        runtime.slots()->Reserve(edge.site.updates.front(), *edge.bytes, memory::kUpdateBlocks));
    planned.joins_pool = true;
  }
  return planned;
}

}  // namespace

const Runtime* PlanningRuntime() {
  const Runtime* runtime = ProcessRuntimeIfMade();
  const bool plans =
      runtime != nullptr && runtime->device() != nullptr && runtime->settings().static_edges;
  return plans ? runtime : nullptr;
}

void PlanEdges(const std::string& owner, std::vector<analyzer::Edge> edges,
               const std::function<Peer*(const std::string& task)>& peer_of) {
  const Runtime* runtime = PlanningRuntime();
  if (runtime == nullptr || edges.empty()) return;
  analyzer::Plan plan;
  plan.edges = std::move(edges);
  analyzer::PlaceEdges(LimitsOf(*runtime), {}, &plan);
  std::map<std::string, std::vector<PlannedEdge>> by_task;
  for (const analyzer::Edge& edge : plan.edges) {
    if (edge.mode != analyzer::EdgeMode::kStatic && edge.mode != analyzer::EdgeMode::kDynamic) {
      continue;
    }
    const std::string task(WorkerOf(edge.destination_device));
    const bool read_in_place =
        edge.site.kind == "staged" && edge.bytes.has_value() && WorthRegistering(*edge.bytes);
    by_task[task].push_back(ToPlanned(*runtime, edge));
    by_task[task].back().read_in_place = read_in_place;
  }
  for (auto& [task, planned] : by_task) {
    Peer* peer = peer_of(task);
    if (peer != nullptr) peer->Plan(owner, std::move(planned));
  }
}

}  // namespace rdma_transport
