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

}  // namespace rdma_transport::fabric::verbs
