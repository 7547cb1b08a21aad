#include "fabric/verbs/reach.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "fabric/verbs/subnet.h"

namespace rdma_transport::fabric::verbs {

void DescribePort(const Port& port, ChannelAddress* address) {
  address->ethernet = port.ethernet;
  address->gid_type = static_cast<uint8_t>(port.gid.type);
  std::memcpy(address->gid.data(), port.gid.bytes.raw, address->gid.size());
  address->lid = port.lid;
  address->mtu = port.mtu;
  address->read_depth = static_cast<uint32_t>(std::max(port.attributes.max_qp_rd_atom, 1));
}

Status Reachable(const Port& own, const ChannelAddress& peer) {
  if (peer.ethernet != own.ethernet) {
    return Status(Code::kUnavailable, std::string("it is on ") +
                                          (peer.ethernet ? "RoCE" : "InfiniBand") + ", this is " +
                                          own.Text());
  }
  if (!own.ethernet) return OkStatus();
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

}  // namespace rdma_transport::fabric::verbs
