// Which ports can reach each other.
#pragma once

#include "base/status.h"
#include "fabric/verbs/ports.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Sets what peers must know of a port.
void DescribePort(const Port& port, ChannelAddress* address);

// Returns OK if packets of this port may reach that of the peer: both are of one kind of network.
// Otherwise the reason, as Unavailable.
Status Reachable(const Port& own, const ChannelAddress& peer);

}  // namespace rdma_transport::fabric::verbs
