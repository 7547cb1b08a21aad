// Chooses the ports to use by their descriptions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "fabric/host/device_list.h"
#include "fabric/verbs/gid.h"

namespace rdma_transport::fabric::verbs {

// A port of this host as it was read, for ChooseAmong().
struct PortCandidate {
  std::string device;
  int number = 0;  // 0: the device as a whole; its ports were not read
  ibv_transport_type transport = IBV_TRANSPORT_IB;
  bool far = false;  // attached to processors on which this process may not run
  Status problem;    // why the port could not be read; if set, the fields below are invalid
  ibv_port_attr attributes = {};
  uint32_t speed_ex = 0;  // code of speeds for which `attributes` have no room; 0: not known
  std::vector<Gid> gids;  // without empty entries
  std::vector<uint16_t> pkeys;

  bool ethernet() const { return attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
  std::string Name() const { return number == 0 ? device : device + ":" + std::to_string(number); }
};

// A port to use, by its index among the candidates, and how.
struct PortChoice {
  size_t candidate = 0;
  Gid gid;
  uint16_t pkey_index = 0;
  ibv_mtu mtu = IBV_MTU_1024;
};

// Returns whether devices with this transport support reliable connections.
inline bool HasReliableConnections(ibv_transport_type transport) {
  return transport == IBV_TRANSPORT_IB || transport == IBV_TRANSPORT_UNKNOWN;
}

uint32_t MtuBytes(ibv_mtu mtu);
// Returns the rate of a port that has been read.
double GigabitsPerSecond(const PortCandidate& port);

// Most ports that a task uses.
constexpr size_t kMaxPorts = 8;

// Chooses how to use one port. Returns why it cannot be used.
Status ChooseUse(const PortCandidate& candidate, const VerbsSettings& settings, PortChoice* choice);

// Lets the GID of a port that is open stay as it is, though maybe at another index, where it is
// still there and of the same kind and family as `gid`, which was chosen now.
void KeepGid(const PortCandidate& candidate, const Gid& present, Gid* gid);

// ChoosePorts() of ports.h for `candidates` that have been read, in the order of the device list.
Status ChooseAmong(const std::vector<PortCandidate>& candidates, const host::DeviceList& list,
                   const VerbsSettings& settings, std::vector<PortChoice>* choices,
                   std::vector<std::string>* left_out);

// Returns, in the order of `list`, the candidates that may be used together with `best` once they
// are active, at most `most`.
std::vector<size_t> ChooseStandby(const std::vector<PortCandidate>& candidates,
                                  const host::DeviceList& list, const PortCandidate& best,
                                  size_t most);

}  // namespace rdma_transport::fabric::verbs
