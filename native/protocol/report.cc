#include "protocol/report.h"

#include <unistd.h>  // environ

#include <cstdlib>
#include <map>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "base/settings.h"
#include "protocol/counters.h"
#include "protocol/runtime.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// Incremented when a key is removed or changes its meaning; rdma_transport/observe/samples.py reads
// this version.
constexpr int kStatsFormat = 1;

// Traffic by mode, of one peer or of several together.
class ModeSums {
 public:
  void Add(const ModeCounter* counters) {
    for (int i = 0; i < kModeCount; ++i) {
      sums_[i].tensors += counters[i].tensors.load(std::memory_order_relaxed);
      sums_[i].bytes += counters[i].bytes.load(std::memory_order_relaxed);
    }
  }
  std::string Text() const {
    Json json('{');
    for (int i = 0; i < kModeCount; ++i) {
      json.Field(ModeName(static_cast<Mode>(i)),
                 Json('{').Count("tensors", sums_[i].tensors).Count("bytes", sums_[i].bytes).End());
    }
    return json.End();
  }

 private:
  struct Sum {
    uint64_t tensors = 0;
    uint64_t bytes = 0;
  };
  Sum sums_[kModeCount];
};

std::string ModesOf(const ModeCounter* counters) {
  ModeSums sums;
  sums.Add(counters);
  return sums.Text();
}

std::string Replies(const ModeCounter& counter) {
  return Json('{')
      .Count("elements", counter.tensors.load())
      .Count("bytes", counter.bytes.load())
      .End();
}

std::string Named(const NamedCounter& counter) {
  Json json('{');
  for (const auto& [name, count] : counter.Get()) json.Count(name, count);
  return json.End();
}

std::string Edges(const std::vector<EdgeReport>& edges) {
  Json json('[');
  for (const EdgeReport& edge : edges) {
    Json shape('[');
    for (const int64_t dim : edge.spec.dims) shape.Add(std::to_string(dim));
    json.Add(Json('{')
                 .Text("key", edge.spec.key)
                 .Text("destination", edge.peer)
                 .Count("dtype", edge.spec.dtype)
                 .Field("shape", shape.End())
                 .Count("bytes", edge.spec.bytes)
                 .Text("mode", edge.is_static ? "static" : "dynamic")
                 .Flag("planned", edge.planned)
                 .Text("placement", edge.at_receiver ? "receiver" : "sender")
                 .Count("slots", edge.slots)
                 .Count("hits", edge.hits)
                 .Count("misses", edge.misses)
                 .Count("staged_bytes", edge.staged_bytes)
                 .Text("site", edge.sites)
                 .End());
  }
  return json.End();
}

std::string Plan(const PlanCounters& counters, const memory::SlotPoolStats& pools,
                 const std::vector<EdgeReport>& edges) {
  std::map<std::string, uint64_t> staged;
  for (const EdgeReport& edge : edges) {
    if (edge.staged_bytes > 0) staged[edge.sites] += edge.staged_bytes;
  }
  Json staged_json('{');
  for (const auto& [site, bytes] : staged) staged_json.Count(site, bytes);
  return Json('{')
      .Count("hits", counters.hits.load())
      .Field("misses", Named(counters.misses))
      .Count("promotions", counters.promotions.load())
      .Count("demotions", counters.demotions.load())
      .Count("slot_allocations", counters.slot_allocations.load())
      .Count("pools", pools.pools)
      .Count("pool_blocks", pools.blocks)
      .Count("pool_bytes", pools.bytes)
      .Count("pool_blocks_ever", pools.blocks_ever)
      .Field("staged_bytes_by_site", staged_json.End())
      .Field("edges", Edges(edges))
      .End();
}

std::string Ring(const fabric::Backlog& backlog) {
  return Json('{')
      .Count("capacity_bytes", backlog.ring_bytes)
      .Count("used_bytes", backlog.used_bytes)
      .Count("waiting_bytes", backlog.waiting_bytes)
      .End();
}

// The slots of the static edges to a task, and the busy slots in its memory.
std::string Slots(const std::vector<EdgeReport>& edges, const std::string& task) {
  uint64_t agreed = 0, busy = 0;
  for (const EdgeReport& edge : edges) {
    if (edge.peer != task) continue;
    agreed += edge.slots;
    busy += edge.busy;
  }
  return Json('{').Count("agreed", agreed).Count("busy", busy).End();
}

std::string PeerText(const PeerStats& peer, const std::vector<EdgeReport>& edges) {
  return Json('{')
      .Text("task", peer.task)
      .Text("local", peer.local)
      .Text("address", peer.address)
      .Text("incarnation", Hex(peer.incarnation))
      .Text("transport", peer.transport)
      .Text("reason", peer.reason)
      .Flag("linked", peer.linked)
      .Flag("lost", peer.lost)
      .Count("links", peer.links)
      .Field("linked_at", peer.links == 0 ? "null" : std::to_string(peer.linked_at))
      .Text("last_error", peer.last_error)
      .Field("sent", ModesOf(peer.traffic->sent))
      .Field("received", ModesOf(peer.traffic->received))
      .Count("outstanding_tensors", peer.outstanding)
      .Field("slots", Slots(edges, peer.task))
      .Field("ring", Ring(peer.backlog))
      .End();
}

}  // namespace

std::string StatsJson(const Runtime* runtime) {
  const Counters& counters = GlobalCounters();
  memory::ArenaStats arena;
  ModeSums sent, received;
  counters.traffics.ForEach([&](const Traffic& traffic) {
    sent.Add(traffic.sent);
    received.Add(traffic.received);
  });
  Json tasks('['), peers('[');
  std::vector<EdgeReport> edges;
  memory::SlotPoolStats pools;
  uint64_t kept = 0;
  if (runtime != nullptr) {
    if (runtime->arena() != nullptr) arena = runtime->arena()->Stats();
    if (runtime->slots() != nullptr) pools = runtime->slots()->Stats();
    for (const LocalTask* task : runtime->Tasks()) {
      const TaskReport report = task->Report();
      tasks.Add(Quote(report.task));
      for (const PeerStats& peer : report.peers) peers.Add(PeerText(peer, report.edges));
      kept += report.unclaimed_tensors;
      edges.insert(edges.end(), report.edges.begin(), report.edges.end());
    }
  }
  return Json('{')
      .Count("format", kStatsFormat)
      .Flag("loaded", runtime != nullptr)
      .Field("tasks", tasks.End())
      .Field("sent", sent.Text())
      .Field("received", received.Text())
      .Field("data_service", Json('{')
                                 .Field("sent", Replies(counters.replies_sent))
                                 .Field("received", Replies(counters.replies_received))
                                 .End())
      .Count("copied_bytes", counters.copied_bytes.load())
      .Count("staged_tensors", counters.staged_tensors.load())
      .Count("inline_copied_bytes", counters.inline_copied_bytes.load())
      .Count("registrations", arena.registrations)
      .Count("live_regions", arena.slabs)
      .Count("region_bytes", arena.capacity_bytes)
      .Count("outstanding_tensors", counters.outstanding_tensors.load())
      .Count("unclaimed_tensors", kept)
      .Count("late_tensors", counters.late_tensors.load())
      .Field("arena", Json('{')
                          .Count("limit_bytes", arena.limit_bytes)
                          .Count("capacity_bytes", arena.capacity_bytes)
                          .Count("used_bytes", arena.used_bytes)
                          .Count("refused", arena.refused)
                          .End())
      .Field("plan", Plan(counters.plan, pools, edges))
      .Field("fallback_reasons", Named(counters.fallback_reasons))
      .Field("errors", Named(counters.errors))
      .Flag("tracing", Trace::On())
      .Field("peers", peers.End())
      .End();
}

std::string SettingsJson() {
  Settings settings;
  std::vector<std::string> warnings;
  const Status status = LoadSettings(environ, &settings, &warnings);
  Json rows('[');
  for (const SettingRow& row : SettingsTable()) {
    const char* given = std::getenv(row.name.c_str());
    rows.Add(Json('{')
                 .Text("name", row.name)
                 .Text("type", row.type)
                 .Text("default", row.default_text)
                 .Text("meaning", row.meaning)
                 .Text("source", given == nullptr ? "default" : "environment")
                 .Text("value", given == nullptr ? row.default_text : given)
                 .End());
  }
  Json warned('[');
  for (const std::string& warning : warnings) warned.Add(Quote(warning));
  return Json('{')
      .Field("settings", rows.End())
      .Text("error", status.message())
      .Field("warnings", warned.End())
      .End();
}

}  // namespace rdma_transport
