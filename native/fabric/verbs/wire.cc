#include "fabric/verbs/wire.h"

#include <cstring>

#include "base/settings.h"

namespace rdma_transport::fabric::verbs {
namespace {

// The token follows. Both ends are little-endian, and the bootstrap has compared their protocol
// versions.
struct AddressPart {
  uint64_t ring_address;
  uint64_t ring_size;
  uint32_t ring_rkey;
  uint32_t most_batches;
  uint32_t number;
  uint32_t first_psn;
  uint32_t mtu;
  uint32_t read_depth;
  uint16_t lid;
  uint8_t ethernet;
  uint8_t gid_type;
  uint8_t grh_required;
  uint8_t unused[3];
  uint8_t gid[16];
};

}  // namespace

std::string ChannelAddress::Encode() const {
  AddressPart part = {};
  part.ring_address = ring_address;
  part.ring_size = ring_size;
  part.ring_rkey = ring_rkey;
  part.most_batches = most_batches;
  part.number = number;
  part.first_psn = first_psn;
  part.mtu = mtu;
  part.read_depth = read_depth;
  part.lid = lid;
  part.ethernet = ethernet ? 1 : 0;
  part.gid_type = gid_type;
  part.grh_required = grh_required ? 1 : 0;
  std::memcpy(part.gid, gid.data(), gid.size());
  return std::string(reinterpret_cast<const char*>(&part), sizeof(part)) + token;
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  AddressPart part;
  const bool whole = bytes.size() == sizeof(part) + kTokenLength;
  if (whole) std::memcpy(&part, bytes.data(), sizeof(part));
  // This side pins a mirror as large as the peer's ring.
  if (!whole || part.ring_size % kMinRing != 0 || part.ring_size < kMinRing ||
      part.ring_size > kMaxRing || part.most_batches == 0 ||
      part.most_batches > VerbsSettings::kMaxQueueDepth) {
    return Status(Code::kInvalidArgument, "a malformed verbs address");
  }
  address->ring_address = part.ring_address;
  address->ring_size = part.ring_size;
  address->ring_rkey = part.ring_rkey;
  address->most_batches = part.most_batches;
  address->number = part.number;
  address->first_psn = part.first_psn;
  address->mtu = part.mtu;
  address->read_depth = part.read_depth;
  address->lid = part.lid;
  address->ethernet = part.ethernet != 0;
  address->gid_type = part.gid_type;
  address->grh_required = part.grh_required != 0;
  std::memcpy(address->gid.data(), part.gid, address->gid.size());
  address->token.assign(bytes.substr(sizeof(part)));
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
