// Reads the ports of this host, chooses the devices, ports and GIDs to use, and explains why the
// others are not used.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "fabric/verbs/gid.h"
#include "fabric/verbs/library.h"
#include "fabric/verbs/port_choice.h"

namespace rdma_transport::fabric::verbs {

// An opened port that can be used. The owner must close the context.
struct Port {
  ibv_context* context = nullptr;
  std::string device;  // "mlx5_0"
  std::string folder;  // in sysfs, of the card
  uint8_t number = 1;
  bool ethernet = false;  // RoCE; otherwise InfiniBand
  Gid gid;
  uint16_t lid = 0;
  bool grh_required = false;  // of InfiniBand: its lid is not its own
  uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;  // the port's active MTU, or less if the settings say so
  uint64_t largest_message = 0;
  double gigabits = 0;  // per second, when it was opened
  int subnet_bits = 0;  // leading bits of the GID that its subnet has in common, see gid.h
  ibv_device_attr attributes = {};
  // False: it has not been active yet, so what depends on that is not known.
  bool known = false;

  // Whether peers reach it in the same way.
  bool SameAddress(const Port& other) const;
  // Returns for example "mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)".
  std::string Text() const;
};

// Opens the usable ports in the order of RDMA_TRANSPORT_DEVICES, with the GID of
// RDMA_TRANSPORT_GID_INDEX. The device list uses NCCL's syntax: "mlx5_0:1,mlx5_1"; "^mlx5_1"
// excludes, "=mlx5_1" matches exactly, other names are prefixes. If it is empty, all ports are
// candidates, fastest first, and of these first those near the processors on which this process may
// run. Only ports of the kind and speed of the first one are used with it.
// `left_out` receives a sentence for each unused port; an error contains them all and a fix.
// `standby`, if not null, receives those that can be used once they are active.
Status ChoosePorts(const Library& library, const VerbsSettings& settings, std::vector<Port>* ports,
                   std::vector<std::string>* left_out, std::vector<Port>* standby = nullptr);

// Reads a port again: it was not known, or its tables may have changed. It keeps its GID if that is
// still there and no better kind has come. Returns FailedPrecondition if it cannot be used now.
Status ReadAgain(const Library& library, const VerbsSettings& settings, const Port& port,
                 Port* fresh);

// Like ChoosePorts(), but keeps nothing open. `candidates` receives every port, also if an error is
// returned.
Status SurveyPorts(const Library& library, const VerbsSettings& settings,
                   std::vector<PortCandidate>* candidates, std::vector<PortChoice>* choices,
                   std::vector<std::string>* left_out);

}  // namespace rdma_transport::fabric::verbs
