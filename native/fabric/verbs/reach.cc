#include "fabric/verbs/reach.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace rdma_transport::fabric::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
// UCX's for RoCE v2 (UCX_IB_TRAFFIC_CLASS of uct/ib), for which guides of vendors configure
// switches: DSCP 26, and packets that routers may mark for congestion.
constexpr int kUsualTrafficClass = 106;

bool OneSubnet(const Port& own, const ChannelAddress& peer) {
  return SameSubnetOfInfiniBand(own.gid.bytes.raw, peer.gid.data());
}

}  // namespace

void DescribePort(const Port& port, ChannelAddress* address) {
  address->ethernet = port.ethernet;
  address->gid_type = static_cast<uint8_t>(port.gid.type);
  std::memcpy(address->gid.data(), port.gid.bytes.raw, address->gid.size());
  address->lid = port.lid;
  address->grh_required = port.grh_required;
  address->mtu = port.mtu;
  address->read_depth = static_cast<uint32_t>(std::max(port.attributes.max_qp_rd_atom, 1));
}

Status Reachable(const Port& own, const ChannelAddress& peer) {
  if (peer.ethernet != own.ethernet) {
    return Status(Code::kUnavailable, std::string("it is on ") +
                                          (peer.ethernet ? "RoCE" : "InfiniBand") + ", this is " +
                                          own.Text());
  }
  if (!own.ethernet) {
    if (OneSubnet(own, peer) ||
        (RouterLid(own.gid.bytes.raw) != 0 && RouterLid(peer.gid.data()) != 0))
      return OkStatus();
    Gid other;
    std::memcpy(other.bytes.raw, peer.gid.data(), peer.gid.size());
    return Status(Code::kUnavailable,
                  "it is on another subnet of InfiniBand (GID " + other.Text() +
                      "), and the subnet managers gave the ports no LIDs for routers (FLID); this "
                      "is " +
                      own.Text());
  }
  constexpr const char* kFix = ": set RDMA_TRANSPORT_GID_INDEX so that both are of one kind; here ";
  if (IsIpv4(peer.gid.data()) != IsIpv4(own.gid.bytes.raw)) {
    return Status(Code::kUnavailable,
                  std::string("one GID is IPv4, the other IPv6") + kFix + own.Text());
  }
  if (peer.gid_type != static_cast<uint8_t>(own.gid.type)) {
    return Status(Code::kUnavailable,
                  std::string("one GID is RoCE v1, the other RoCE v2") + kFix + own.Text());
  }
  return OkStatus();
}

// As NCCL does it (ncclIbRtrQp() in net_ib), with the GRH of UCX and the kernel where a port needs
// one.
void SetDestination(const Port& own, const ChannelAddress& peer, int traffic_class,
                    ibv_ah_attr* destination) {
  const bool routed = !own.ethernet && !OneSubnet(own, peer);
  destination->dlid = routed ? RouterLid(peer.gid.data()) : peer.lid;
  if (!own.ethernet && !routed && !own.grh_required && !peer.grh_required) return;
  destination->is_global = 1;
  std::memcpy(destination->grh.dgid.raw, peer.gid.data(), peer.gid.size());
  destination->grh.sgid_index = static_cast<uint8_t>(own.gid.index);
  destination->grh.hop_limit = kHopLimit;
  if (traffic_class < 0) traffic_class = own.gid.type == GidType::kRoceV2 ? kUsualTrafficClass : 0;
  destination->grh.traffic_class = static_cast<uint8_t>(traffic_class);
}

}  // namespace rdma_transport::fabric::verbs
