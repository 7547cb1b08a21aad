// Turns the edges of a graph into slots agreed on with peers.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "protocol/peer.h"
#include "protocol/runtime.h"

namespace rdma_transport {

// Returns the runtime of this process, or null if it plans no edges. In a process without an rdma
// server nothing changes.
const Runtime* PlanningRuntime();

// Plans the static edges among `edges`, until Peer::Unplan(owner). `peer_of` returns the peer of a
// task, or null to leave out the edges to it.
void PlanEdges(const std::string& owner, std::vector<analyzer::Edge> edges,
               const std::function<Peer*(const std::string& task)>& peer_of);

}  // namespace rdma_transport
