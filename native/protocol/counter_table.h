// Declares every counter that users see once: key, kind, meaning, value. stats(), status, metrics,
// their schema and the documentation are made from this table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "memory/arena.h"
#include "memory/direct_memory.h"
#include "memory/slot_pools.h"
#include "protocol/counters.h"
#include "protocol/static_edge.h"
#include "protocol/task_report.h"

namespace rdma_transport {

// What the counters of a process are read from, besides GlobalCounters().
struct ProcessCounts {
  memory::ArenaStats arena;
  memory::SlotPoolStats pools;
  memory::DirectStats direct;
  std::vector<EdgeReport> edges;  // of all tasks
  uint64_t unclaimed_tensors = 0;
};

// What the counters of a peer are read from.
struct PeerCounts {
  const PeerStats& peer;
  const std::vector<EdgeReport>& edges;  // of the task that has the peer; to all its peers
};

// Set every counter in `json` at its key.
void AddCounters(const ProcessCounts& process, JsonTree* json);
void AddCounters(const PeerCounts& peer, JsonTree* json);

// The table: "process" and "peer", an array of rows each, with "key", "kind" ("counter",
// "gauge" or "histogram"), "metric" (empty: not exported) and "meaning"; and "modes", the names
// that {mode} stands for.
std::string CountersJson();

}  // namespace rdma_transport
