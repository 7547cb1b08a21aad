// What a task reports about its peers and static edges.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/counters.h"
#include "protocol/static_edge.h"

namespace rdma_transport {

// One peer of a local task, or a task that linked to it.
struct PeerStats {
  std::string local;  // the local task
  std::string task;
  std::string address;
  uint64_t incarnation = 0;
  std::string transport;  // "idle", "connecting", the fabric's name, "grpc", "unreachable"
  std::string reason;
  bool linked = false;
  bool lost = false;       // was linked before, but is not now
  uint64_t links = 0;      // number of links that came up
  double linked_at = 0;    // when the last link came up, in seconds since 1970; 0 if never
  std::string last_error;  // why the last link ended or failed to come up
  const Traffic* traffic = nullptr;
  uint64_t outstanding = 0;  // buffers that the peer may still read
  fabric::Backlog backlog;
};

// A snapshot of one local task.
struct TaskReport {
  std::string task;
  std::vector<PeerStats> peers;
  std::vector<EdgeReport> edges;
  uint64_t unclaimed_tensors = 0;  // arrived and not requested yet
};

}  // namespace rdma_transport
