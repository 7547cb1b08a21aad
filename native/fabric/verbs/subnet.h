// Which ports are on one subnet.
#pragma once

#include "fabric/verbs/gid.h"

namespace rdma_transport::fabric::verbs {

// Returns how many leading bits of the GID all ports of its subnet have in common: the netmask of
// the network interface with this address, or the usual length if no interface of this network
// namespace has it. Ports of InfiniBand have the subnet's prefix of 64 bits.
int SubnetBits(const Gid& gid, bool ethernet);

// Returns whether two GIDs of InfiniBand are of one subnet, by their prefixes.
bool SameSubnetOfInfiniBand(const uint8_t* a, const uint8_t* b);

// Returns the LID (FLID) by which the routers of InfiniBand take packets for a GID, or 0.
uint16_t RouterLid(const uint8_t* gid);

// Returns whether a GID is an IPv4 address.
bool IsIpv4(const uint8_t* gid);

}  // namespace rdma_transport::fabric::verbs
