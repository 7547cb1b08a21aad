// The addresses of a verbs port.
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

}  // namespace rdma_transport::fabric::verbs
