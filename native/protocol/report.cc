#include "protocol/report.h"

#include <unistd.h>  // environ

#include <cstdlib>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "base/settings.h"
#include "protocol/counter_table.h"
#include "protocol/runtime.h"
#include "protocol/trace.h"

namespace rdma_transport {
namespace {

// Incremented when a key is removed or changes its meaning; rdma_transport/observe/samples.py reads
// this version.
constexpr int kStatsFormat = 1;

std::string EdgeText(const EdgeReport& edge) {
  return Json('{')
      .Text("key", edge.spec.key)
      .Text("destination", edge.peer)
      .Count("dtype", edge.spec.dtype)
      .Field("shape", JsonArray(edge.spec.dims, [](int64_t dim) { return std::to_string(dim); }))
      .Count("bytes", edge.spec.bytes)
      .Text("mode", edge.is_static ? "static" : "dynamic")
      .Flag("planned", edge.planned)
      .Text("placement", edge.at_receiver ? "receiver" : "sender")
      .Count("slots", edge.slots)
      .Count("hits", edge.hits)
      .Count("misses", edge.misses)
      .Count("staged_bytes", edge.staged_bytes)
      .Text("site", edge.sites)
      .End();
}

std::string PeerText(const PeerStats& peer, const std::vector<EdgeReport>& edges) {
  Json json('{');
  json.Text("task", peer.task)
      .Text("local", peer.local)
      .Text("address", peer.address)
      .Text("incarnation", Hex(peer.incarnation))
      .Text("transport", peer.transport)
      .Text("reason", peer.reason)
      .Flag("linked", peer.linked)
      .Flag("lost", peer.lost)
      .Field("linked_at", peer.links == 0 ? "null" : std::to_string(peer.linked_at))
      .Text("last_error", peer.last_error);
  JsonTree counts;
  AddCounters({peer, edges}, &counts);
  counts.AddTo(&json);
  return json.End();
}

std::string PortText(const fabric::PortReport& port) {
  return Json('{')
      .Text("name", port.name)
      .Text("text", port.text)
      .Flag("active", port.active)
      .Count("written_bytes", port.written_bytes)
      .Count("read_bytes", port.read_bytes)
      .Count("failures", port.failures)
      .End();
}

std::string SettingText(const SettingRow& row) {
  const char* given = std::getenv(row.name.c_str());
  return Json('{')
      .Text("name", row.name)
      .Text("type", row.type)
      .Text("default", row.default_text)
      .Text("meaning", row.meaning)
      .Text("source", given == nullptr ? "default" : "environment")
      .Text("value", given == nullptr ? row.default_text : given)
      .End();
}

}  // namespace

std::string StatsJson(const Runtime* runtime) {
  ProcessCounts process;
  Json tasks('['), peers('[');
  std::vector<fabric::PortReport> ports;
  if (runtime != nullptr) {
    if (runtime->device() != nullptr) ports = runtime->device()->Ports();
    if (runtime->arena() != nullptr) process.arena = runtime->arena()->Stats();
    if (runtime->slots() != nullptr) process.pools = runtime->slots()->Stats();
    if (runtime->direct() != nullptr) process.direct = runtime->direct()->Stats();
    for (const LocalTask* task : runtime->Tasks()) {
      const TaskReport report = task->Report();
      tasks.Add(Quote(report.task));
      for (const PeerStats& peer : report.peers) peers.Add(PeerText(peer, report.edges));
      process.unclaimed_tensors += report.unclaimed_tensors;
      process.edges.insert(process.edges.end(), report.edges.begin(), report.edges.end());
    }
  }
  Json json('{');
  json.Count("format", kStatsFormat).Flag("loaded", runtime != nullptr).Field("tasks", tasks.End());
  JsonTree counts;
  AddCounters(process, &counts);
  counts.At("plan.edges").Set(JsonArray(process.edges, EdgeText));
  counts.AddTo(&json);
  return json.Flag("tracing", Trace::On())
      .Field("ports", JsonArray(ports, PortText))
      .Field("peers", peers.End())
      .End();
}

std::string SettingsJson() {
  Settings settings;
  std::vector<std::string> warnings;
  const Status status = LoadSettings(environ, &settings, &warnings);
  return Json('{')
      .Field("settings", JsonArray(SettingsTable(), SettingText))
      .Text("error", status.message())
      .Field("warnings", JsonArray(warnings, Quote))
      .End();
}

}  // namespace rdma_transport
