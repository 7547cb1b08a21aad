// Rails: which ports of two ends are connected with each other, and thus which queue pairs. Both
// ends compute the same from the two addresses.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/verbs/ports.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Two ports, by their indexes in the addresses of their ends.
struct Rail {
  size_t own = 0;
  size_t peer = 0;
};

// Two queue pairs, by their indexes in the addresses of their ends.
struct ConnectedPair {
  size_t own = 0;
  size_t peer = 0;
};

// Returns what peers must know of a port, except its ring.
ChannelAddress::Port AddressOf(const Port& port);

// Returns OK if packets of one port may reach the other: both are of one kind of network. Otherwise
// the reason, as Unavailable: a sentence that the description of the own port completes.
Status Reachable(const ChannelAddress::Port& own, const ChannelAddress::Port& peer);

// Returns the rails, each port in at most one: active ports of one subnet first, in the order of
// the addresses. If no two ports are on one subnet, packets must be routed; the ports are then
// matched by their order alone. Ports that were never active come last; what they can reach is not
// known. Empty if no other port may reach another one.
std::vector<Rail> MatchPorts(const ChannelAddress& own, const ChannelAddress& peer, Role role);

// Returns the queue pairs to connect. The first one is of the first rail; the rails follow in turn,
// as many as both ends want.
std::vector<ConnectedPair> MatchQueuePairs(const ChannelAddress& own, const ChannelAddress& peer,
                                           Role role);

}  // namespace rdma_transport::fabric::verbs
