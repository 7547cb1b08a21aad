// Which ports can reach each other.
#pragma once

#include "base/status.h"
#include "fabric/verbs/ports.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Sets what peers must know of a port.
void DescribePort(const Port& port, ChannelAddress* address);

// Returns OK if packets of this port may reach that of the peer: both are of one kind of network,
// and routers between two subnets of InfiniBand know them. Otherwise the reason, as Unavailable.
Status Reachable(const Port& own, const ChannelAddress& peer);

// Sets where packets to a reachable peer go: its LID, or that of the router to it, and its GID
// where they need a global route header. Both ends decide alike.
// `traffic_class` is that of the settings.
void SetDestination(const Port& own, const ChannelAddress& peer, int traffic_class,
                    ibv_ah_attr* destination);

}  // namespace rdma_transport::fabric::verbs
