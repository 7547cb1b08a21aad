// Which device, port and GID to use, and why not the others.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "fabric/verbs/library.h"

namespace rdma_transport::fabric::verbs {

enum class GidType { kInfiniBand, kRoceV1, kRoceV2 };

struct Gid {
  ibv_gid bytes = {};
  uint32_t index = 0;
  GidType type = GidType::kInfiniBand;

  // "10.7.0.1", "fd00:7::1", "fe80::…" for RoCE and InfiniBand alike.
  std::string Text() const;
};

// A port that can be used, opened: whoever holds it closes the context.
struct Port {
  ibv_context* context = nullptr;
  std::string device;  // "mlx5_0"
  uint8_t number = 1;
  bool ethernet = false;  // RoCE; otherwise InfiniBand
  Gid gid;
  uint16_t lid = 0;
  uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;  // the port's active one, or less by the settings
  uint64_t largest_message = 0;
  ibv_device_attr attributes = {};

  // "mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)"
  std::string Text() const;
};

// The first usable port in the order of RDMA_TRANSPORT_DEVICES (NCCL's grammar: "mlx5_0:1,mlx5_1",
// "^mlx5_1" to leave out, "=mlx5_1" for an exact name, otherwise names are prefixes; empty: all;
// fastest first), with the GID that RDMA_TRANSPORT_GID_INDEX asks for. `left_out` gets a sentence
// for each port that is not used. An error says all of them, and what to do.
Status ChoosePort(const Library& library, const VerbsSettings& settings, Port* port,
                  std::vector<std::string>* left_out);

}  // namespace rdma_transport::fabric::verbs
