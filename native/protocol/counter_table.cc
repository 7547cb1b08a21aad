#include "protocol/counter_table.h"

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace rdma_transport {
namespace {

enum Kind { kCounter, kGauge, kHistogram };
constexpr const char* kKindNames[] = {"counter", "gauge", "histogram"};

constexpr char kNotExported[] = "";

// The value of a counter as JSON, or one value for each name that its label takes.
struct Values {
  Values(uint64_t value) : by_name{{"", std::to_string(value)}} {}  // NOLINT: rows return numbers
  explicit Values(const std::map<std::string, uint64_t>& values) {
    for (const auto& [name, value] : values) by_name.emplace_back(name, std::to_string(value));
  }
  Values() = default;

  std::vector<std::pair<std::string, std::string>> by_name;
};

template <typename Counts>
struct Row {
  // A dot separates names, and {label} stands for each name that the label takes.
  const char* key;
  Kind kind;
  const char* meaning;
  std::function<Values(const Counts&)> read;
  // The metric's name, without "rdma_transport_" and "_total"; nothing: made from the key.
  std::optional<std::string> metric = std::nullopt;
};

// The traffic in one direction, by mode.
Values ByMode(const std::vector<const Traffic*>& traffics, ModeCounter (Traffic::*way)[kModeCount],
              std::atomic<uint64_t> ModeCounter::* unit) {
  Values values;
  for (int mode = 0; mode < kModeCount; ++mode) {
    uint64_t sum = 0;
    for (const Traffic* traffic : traffics) sum += ((traffic->*way)[mode].*unit).load();
    values.by_name.emplace_back(ModeName(static_cast<Mode>(mode)), std::to_string(sum));
  }
  return values;
}

std::vector<const Traffic*> AllTraffics() {
  std::vector<const Traffic*> all;
  GlobalCounters().traffics.ForEach([&](const Traffic& traffic) { all.push_back(&traffic); });
  return all;
}

Values ReceiveTimes() {
  Histogram::Counts counts[kModeCount];
  for (const Traffic* traffic : AllTraffics()) {
    for (int mode = 0; mode < kModeCount; ++mode) traffic->receive_time[mode].AddTo(&counts[mode]);
  }
  Values values;
  for (int mode = 0; mode < kModeCount; ++mode) {
    values.by_name.emplace_back(ModeName(static_cast<Mode>(mode)), counts[mode].ToJson());
  }
  return values;
}

Values TransferTimes() {
  Histogram::Counts reads, writes;
  for (const Traffic* traffic : AllTraffics()) {
    traffic->read_time.AddTo(&reads);
    traffic->write_time.AddTo(&writes);
  }
  Values values;
  values.by_name = {{"read", reads.ToJson()}, {"write", writes.ToJson()}};
  return values;
}

Values CallsByTransport() {
  const Counters& counters = GlobalCounters();
  Values values;
  values.by_name = {{"fabric", std::to_string(counters.calls_by_fabric.load())},
                    {"grpc", std::to_string(counters.calls_by_grpc.load())}};
  return values;
}

Values StagedBySite(const std::vector<EdgeReport>& edges) {
  std::map<std::string, uint64_t> staged;
  for (const EdgeReport& edge : edges) {
    if (edge.staged_bytes > 0) staged[edge.sites] += edge.staged_bytes;
  }
  return Values(staged);
}

uint64_t SumToPeer(const PeerCounts& counts, uint64_t EdgeReport::* field) {
  uint64_t sum = 0;
  std::set<uint64_t> pools;  // edges of one size share receiver-side slots
  for (const EdgeReport& edge : counts.edges) {
    if (edge.peer != counts.peer.task || edge.slots == 0) continue;
    if (!edge.at_receiver || pools.insert(edge.spec.bytes).second) sum += edge.*field;
  }
  return sum;
}

const std::vector<Row<ProcessCounts>>& Rows(const ProcessCounts*) {
  using Process = const ProcessCounts&;
  static const Counters& counters = GlobalCounters();
  static const auto* rows = new std::vector<Row<ProcessCounts>>{
      {"sent.{mode}.tensors", kCounter, "Tensors sent, by mode.",
       [](Process) { return ByMode(AllTraffics(), &Traffic::sent, &ModeCounter::tensors); },
       kNotExported},
      {"sent.{mode}.bytes", kCounter, "Bytes sent, by mode.",
       [](Process) { return ByMode(AllTraffics(), &Traffic::sent, &ModeCounter::bytes); },
       kNotExported},
      {"received.{mode}.tensors", kCounter, "Tensors received, by mode.",
       [](Process) { return ByMode(AllTraffics(), &Traffic::received, &ModeCounter::tensors); },
       kNotExported},
      {"received.{mode}.bytes", kCounter, "Bytes received, by mode.",
       [](Process) { return ByMode(AllTraffics(), &Traffic::received, &ModeCounter::bytes); },
       kNotExported},
      {"receive_seconds.{mode}", kHistogram,
       "Time from a request for a tensor (`_Recv`, or a collective's) to its delivery, by mode. It "
       "includes the time until the tensor is computed.",
       [](Process) { return ReceiveTimes(); }},
      {"transfer_seconds.{operation}", kHistogram,
       "Time that one-sided reads and writes of tensors take on the fabric. Tensors that are "
       "mapped "
       "or inline need none.",
       [](Process) { return TransferTimes(); }},
      {"data_service.sent.elements", kCounter,
       "Elements sent by tf.data service. The end of a sequence counts as one.",
       [](Process) { return counters.replies_sent.tensors.load(); }},
      {"data_service.sent.bytes", kCounter, "Bytes sent by tf.data service.",
       [](Process) { return counters.replies_sent.bytes.load(); }},
      {"data_service.received.elements", kCounter,
       "Elements received by tf.data service. The end of a sequence counts as one.",
       [](Process) { return counters.replies_received.tensors.load(); }},
      {"data_service.received.bytes", kCounter, "Bytes received by tf.data service.",
       [](Process) { return counters.replies_received.bytes.load(); }},
      {"copied_bytes", kCounter, "Bytes copied, without those in notifications.",
       [](Process) { return counters.copied_bytes.load(); }},
      {"staged_tensors", kCounter, "Tensors that the sender copied before the send.",
       [](Process) { return counters.staged_tensors.load(); }},
      {"inline_copied_bytes", kCounter, "Bytes copied into and out of notifications.",
       [](Process) { return counters.inline_copied_bytes.load(); }},
      {"device_copied_bytes", kCounter,
       "Bytes copied out of and into memory of accelerators, to send them and as they arrive.",
       [](Process) { return counters.device_copied_bytes.load(); }},
      {"device_direct_bytes", kCounter,
       "Bytes that cards read or wrote in memory of accelerators, without a copy.",
       [](Process) { return counters.device_direct_bytes.load(); }},
      {"direct.registrations", kCounter,
       "Allocations of accelerators ever registered for cards. Does not grow in a steady job.",
       [](Process process) { return process.direct.registrations; }},
      {"direct.refused", kCounter,
       "Allocations of accelerators that could not be registered: their tensors are copied.",
       [](Process process) { return process.direct.refused; }},
      {"direct.registered_bytes", kGauge, "Bytes of accelerators registered for cards.",
       [](Process process) { return process.direct.bytes; }},
      {"registrations", kCounter, "Memory slabs ever registered. Does not grow in a steady job.",
       [](Process process) { return process.arena.registrations; }},
      {"live_regions", kGauge, "Registered memory slabs.",
       [](Process process) { return process.arena.slabs; }, "regions"},
      {"region_bytes", kGauge, "Bytes of registered memory slabs.",
       [](Process process) { return process.arena.capacity_bytes; }},
      {"outstanding_tensors", kGauge, "Tensors of this process that a peer may still read.",
       [](Process) { return static_cast<uint64_t>(counters.outstanding_tensors.load()); },
       kNotExported},
      {"unclaimed_tensors", kGauge, "Tensors that arrived and are not requested yet.",
       [](Process process) { return process.unclaimed_tensors; }},
      {"late_tensors", kCounter, "Tensors that arrived after their step ended.",
       [](Process) { return counters.late_tensors.load(); }},
      {"arena.limit_bytes", kGauge, "Maximum bytes of registered memory for tensors.",
       [](Process process) { return process.arena.limit_bytes; }},
      {"arena.capacity_bytes", kGauge, "Bytes of registered memory slabs.",
       [](Process process) { return process.arena.capacity_bytes; }, kNotExported},
      {"arena.used_bytes", kGauge, "Bytes of tensors in registered memory.",
       [](Process process) { return process.arena.used_bytes; }},
      {"arena.refused", kCounter, "Allocations refused because the arena was full.",
       [](Process process) { return process.arena.refused; }},
      {"plan.hits", kCounter, "Tensors sent through a slot of a static edge.",
       [](Process) { return counters.plan.hits.load(); }},
      {"plan.misses.{reason}", kCounter, "Tensors of static edges that had no slot.",
       [](Process) { return Values(counters.plan.misses.Get()); }},
      {"plan.promotions", kCounter, "Edges that became static.",
       [](Process) { return counters.plan.promotions.load(); }},
      {"plan.demotions", kCounter, "Edges that stopped being static.",
       [](Process) { return counters.plan.demotions.load(); }},
      {"plan.slot_allocations", kCounter, "Slots ever agreed on with a peer.",
       [](Process) { return counters.plan.slot_allocations.load(); }, "slot_allocations"},
      {"plan.pools", kGauge, "Pools of memory for the tensors of allocation sites.",
       [](Process process) { return process.pools.pools; }},
      {"plan.pool_blocks", kGauge, "Blocks of memory in the pools.",
       [](Process process) { return process.pools.blocks; }},
      {"plan.pool_bytes", kGauge, "Bytes of memory in the pools.",
       [](Process process) { return process.pools.bytes; }},
      {"plan.pool_blocks_ever", kCounter, "Blocks ever added to a pool.",
       [](Process process) { return process.pools.blocks_ever; }},
      {"plan.staged_bytes_by_site.{site}", kGauge,
       "Bytes copied to slots of the current static edges, by allocation site.",
       [](Process process) { return StagedBySite(process.edges); }, kNotExported},
      {"fallback_reasons.{reason}", kCounter, "Tensors that fell back to gRPC.",
       [](Process) { return Values(counters.fallback_reasons.Get()); }, "fallbacks"},
      {"step_calls.{transport}", kCounter,
       "Calls of this task as a master that start a step on another task.",
       [](Process) { return CallsByTransport(); }},
      {"collectives.{algorithm}", kCounter,
       "Collectives of TensorFlow that began here. RdmaDirectReduce is this transport's own.",
       [](Process) { return Values(counters.collectives.Get()); }},
      {"direct_reductions.{transports}", kCounter,
       "Reductions by RdmaDirectReduce that ended here, by what carried them.",
       [](Process) { return Values(counters.direct_reductions.Get()); }},
      {"ring_reasons.{reason}", kCounter,
       "Reductions that used TensorFlow's ring, by the reason why not direct.",
       [](Process) { return Values(counters.ring_reasons.Get()); }},
      {"errors.{kind}", kCounter, "Errors of the transport.",
       [](Process) { return Values(counters.errors.Get()); }},
  };
  return *rows;
}

const std::vector<Row<PeerCounts>>& Rows(const PeerCounts*) {
  using Of = const PeerCounts&;
  static const auto* rows = new std::vector<Row<PeerCounts>>{
      {"sent.{mode}.tensors", kCounter, "Tensors sent, by peer and mode.",
       [](Of of) { return ByMode({of.peer.traffic}, &Traffic::sent, &ModeCounter::tensors); },
       "sent_tensors"},
      {"sent.{mode}.bytes", kCounter, "Bytes sent, by peer and mode.",
       [](Of of) { return ByMode({of.peer.traffic}, &Traffic::sent, &ModeCounter::bytes); },
       "sent_bytes"},
      {"received.{mode}.tensors", kCounter, "Tensors received, by peer and mode.",
       [](Of of) { return ByMode({of.peer.traffic}, &Traffic::received, &ModeCounter::tensors); },
       "received_tensors"},
      {"received.{mode}.bytes", kCounter, "Bytes received, by peer and mode.",
       [](Of of) { return ByMode({of.peer.traffic}, &Traffic::received, &ModeCounter::bytes); },
       "received_bytes"},
      {"links", kCounter, "Links to the peer that came up. Above 1: it reconnected.",
       [](Of of) { return of.peer.links; }},
      {"outstanding_tensors", kGauge, "Tensors that the peer may still read.",
       [](Of of) { return of.peer.outstanding; }},
      {"slots.agreed", kGauge, "Slots of static edges to the peer.",
       [](Of of) { return SumToPeer(of, &EdgeReport::slots); }, "peer_slots"},
      {"slots.busy", kGauge, "Slots at the peer that it has not released.",
       [](Of of) { return SumToPeer(of, &EdgeReport::busy); }},
      {"ring.capacity_bytes", kGauge, "Capacity of the notification ring to the peer.",
       [](Of of) { return of.peer.backlog.ring_bytes; }, "peer_ring_bytes"},
      {"ring.used_bytes", kGauge, "Bytes in the ring that the peer has not read.",
       [](Of of) { return of.peer.backlog.used_bytes; }},
      {"ring.waiting_bytes", kGauge, "Bytes that wait for space in the ring.",
       [](Of of) { return of.peer.backlog.waiting_bytes; }},
  };
  return *rows;
}

template <typename Counts>
void AddRows(const Counts& counts, JsonTree* json) {
  for (const Row<Counts>& row : Rows(&counts)) {
    const std::string_view key = row.key;
    const size_t label = key.find(".{");
    JsonTree& outer = json->At(key.substr(0, label));
    const Values values = row.read(counts);
    if (label == key.npos) {
      outer.Set(values.by_name.front().second);
      continue;
    }
    const size_t dot = key.find('.', label + 1);
    const std::string_view inner = dot == key.npos ? "" : key.substr(dot + 1);
    for (const auto& [name, value] : values.by_name) {
      outer.Field(name).At(inner).Set(value);
    }
  }
}

// "plan.misses.{reason}" becomes "plan_misses_total".
template <typename Counts>
std::string MetricName(const Row<Counts>& row, const std::string& prefix) {
  std::string name = row.metric.value_or(prefix + row.key);
  if (name == kNotExported) return name;
  const size_t label = name.find(".{");
  if (label != name.npos) name.erase(label, name.find('}') + 1 - label);
  for (char& c : name) c = c == '.' ? '_' : c;
  return row.kind == kCounter ? name + "_total" : name;
}

template <typename Counts>
std::string Table(const std::string& prefix) {
  return JsonArray(Rows(static_cast<const Counts*>(nullptr)), [&](const Row<Counts>& row) {
    return Json('{')
        .Text("key", row.key)
        .Text("kind", kKindNames[row.kind])
        .Text("metric", MetricName(row, prefix))
        .Text("meaning", row.meaning)
        .End();
  });
}

}  // namespace

void AddCounters(const ProcessCounts& process, JsonTree* json) { AddRows(process, json); }
void AddCounters(const PeerCounts& peer, JsonTree* json) { AddRows(peer, json); }

std::string CountersJson() {
  Json modes('[');
  for (int mode = 0; mode < kModeCount; ++mode) modes.Add(Quote(ModeName(static_cast<Mode>(mode))));
  return Json('{')
      .Field("process", Table<ProcessCounts>(""))
      .Field("peer", Table<PeerCounts>("peer_"))
      .Field("modes", modes.End())
      .End();
}

}  // namespace rdma_transport
