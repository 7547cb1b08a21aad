// The addresses of verbs ports, and which of them are on one subnet.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

namespace rdma_transport::fabric::verbs {

enum class GidType { kInfiniBand, kRoceV1, kRoceV2 };

// Returns for example "RoCE v2".
const char* GidTypeName(GidType type);

// An entry of a port's GID table: the address of the port on its network.
struct Gid {
  ibv_gid bytes = {};
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;

  // Whether they are one address, wherever it is in the table.
  bool SameAs(const Gid& other) const;
  bool operator==(const Gid& other) const { return SameAs(other) && index == other.index; }
  // Returns for example "10.7.0.1", "fd00:7::1" or "fe80::…", for RoCE and InfiniBand alike.
  std::string Text() const;
};

// Addresses with a common prefix, such as "10.7.0.0/16".
struct GidRange {
  ibv_gid first = {};
  int bits = 0;  // of the GID; those of IPv4 begin with its prefix of 96 bits

  bool Has(const Gid& gid) const;
};
// Returns false if `text` is not one.
bool ParseGidRange(const std::string& text, GidRange* range);

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
