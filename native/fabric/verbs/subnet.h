// Which ports are on one subnet.
#pragma once

#include "fabric/verbs/gid.h"

namespace rdma_transport::fabric::verbs {

// Returns how many leading bits of the GID all ports of its subnet have in common: the netmask of
// the network interface with this address, or the usual length if no interface of this network
// namespace has it. Ports of InfiniBand have the subnet's prefix of 64 bits.
int SubnetBits(const Gid& gid, bool ethernet);

// Returns whether the first `bits` bits of two GIDs are equal.
bool SamePrefix(const uint8_t* a, const uint8_t* b, int bits);

// Returns whether a GID is an IPv4 address.
bool IsIpv4(const uint8_t* gid);

}  // namespace rdma_transport::fabric::verbs
