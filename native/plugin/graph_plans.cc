#include "plugin/graph_plans.h"

#include <algorithm>
#include <map>
#include <utility>

#include "analyzer/placement.h"
#include "plugin/bootstrap_call.h"
#include "plugin/device_names.h"
#include "plugin/worker_cache.h"

namespace rdma_transport {
namespace {

analyzer::Limits LimitsOf(Endpoint* endpoint) {
  const uint64_t arena = endpoint->arena()->Stats().limit_bytes;
  const uint64_t planned = endpoint->slots()->Stats().bytes;
  return {arena - std::min(arena, planned), endpoint->settings().inline_max};
}

PlannedEdge ToPlanned(Endpoint* endpoint, const analyzer::Edge& edge) {
  PlannedEdge planned;
  planned.spec.key = edge.key;
  if (edge.mode == analyzer::EdgeMode::kDynamic) return planned;  // may be promoted later
  planned.spec = {edge.key, static_cast<uint32_t>(edge.dtype), *edge.shape, *edge.bytes};
  planned.slots = edge.slots;
  planned.site = edge.site.op + (edge.site.kind == "kernel" ? "" : " (" + edge.site.kind + ")");
  if (!endpoint->settings().zero_copy || *edge.bytes <= endpoint->settings().arena_min_tensor) {
    return planned;
  }
  if (edge.site.kind == "kernel") {
    planned.pools.push_back(endpoint->slots()->Reserve(edge.site.op, *edge.bytes, edge.slots));
  } else if (edge.site.kind == "variable" && edge.site.updates.size() == 1) {
    // The variable's buffer, and the one that an update allocates while the first is being read,
    // take turns.
    planned.pools.push_back(
        endpoint->slots()->Reserve(edge.site.updates.front(), *edge.bytes, memory::kUpdateBlocks));
    planned.joins_pool = true;
  }
  return planned;
}

}  // namespace

void PlanGraph(Endpoint* endpoint, const std::string& owner, std::vector<analyzer::Edge> edges,
               const std::shared_ptr<tensorflow::WorkerCacheInterface>& cache,
               tensorflow::Device* device) {
  if (edges.empty()) return;
  analyzer::Plan plan;
  plan.edges = std::move(edges);
  analyzer::PlaceEdges(LimitsOf(endpoint), {}, &plan);
  std::map<std::string, std::vector<PlannedEdge>> by_task;
  for (const analyzer::Edge& edge : plan.edges) {
    if (edge.mode != analyzer::EdgeMode::kStatic && edge.mode != analyzer::EdgeMode::kDynamic) {
      continue;
    }
    const std::string task(WorkerOf(edge.destination_device));
    by_task[task].push_back(ToPlanned(endpoint, edge));
  }
  for (auto& [task, planned] : by_task) {
    tensorflow::WorkerInterface* worker = cache->GetOrCreateWorker(task);
    if (worker == nullptr) continue;
    Peer* peer = PeerOf(worker);
    cache->ReleaseWorker(task, worker);
    if (peer == nullptr) continue;
    peer->Plan(owner, std::move(planned),
               [&cache, &name = task, device](std::string request, Nanos timeout,
                                              std::function<void(Status, std::string)> done) {
                 CallBootstrap(cache, name, device, std::move(request), timeout, std::move(done));
               });
  }
}

}  // namespace rdma_transport
