#include "fabric/verbs/wire.h"

#include <cstring>

#include "base/settings.h"

namespace rdma_transport::fabric::verbs {
namespace {

// Both ends are little-endian, and the bootstrap has compared their protocol versions.
struct Fixed {
  uint64_t ring_address;
  uint64_t ring_size;
  uint64_t ring_limit;
  uint32_t ring_rkey;
  uint32_t most_batches;
  uint32_t mtu;
  uint32_t read_depth;
  uint32_t queue_pairs;
  uint16_t lid;
  uint8_t ethernet;
  uint8_t ring_window;
  uint8_t gid[16];
  uint32_t number[kMaxQueuePairs];
  uint32_t first_psn[kMaxQueuePairs];
  char token[kTokenLength];
};

}  // namespace

std::string ChannelAddress::Encode() const {
  Fixed fixed = {};
  fixed.ring_address = ring_address;
  fixed.ring_size = ring_size;
  fixed.ring_limit = ring_limit;
  fixed.ring_rkey = ring_rkey;
  fixed.most_batches = most_batches;
  fixed.mtu = mtu;
  fixed.read_depth = read_depth;
  fixed.queue_pairs = queue_pairs;
  fixed.lid = lid;
  fixed.ethernet = ethernet ? 1 : 0;
  fixed.ring_window = ring_window ? 1 : 0;
  std::memcpy(fixed.gid, gid.data(), gid.size());
  for (int i = 0; i < kMaxQueuePairs; ++i) {
    fixed.number[i] = queue_pair[i].number;
    fixed.first_psn[i] = queue_pair[i].first_psn;
  }
  std::memcpy(fixed.token, token.data(), kTokenLength);
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  Fixed fixed;
  const Status malformed(Code::kInvalidArgument, "a malformed verbs address");
  if (bytes.size() != sizeof(fixed)) return malformed;
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  // This side pins a mirror as large as the peer's ring.
  const auto whole = [](uint64_t size) { return size % kRingGranule == 0; };
  if (fixed.queue_pairs == 0 || fixed.queue_pairs > kMaxQueuePairs || !whole(fixed.ring_size) ||
      fixed.ring_size < kFirstRing || fixed.ring_size > fixed.ring_limit ||
      !whole(fixed.ring_limit) || fixed.ring_limit < VerbsSettings::kMinRing ||
      fixed.ring_limit > VerbsSettings::kMaxRing || fixed.most_batches == 0 ||
      fixed.most_batches > VerbsSettings::kMaxQueueDepth) {
    return malformed;
  }
  address->ring_address = fixed.ring_address;
  address->ring_size = fixed.ring_size;
  address->ring_limit = fixed.ring_limit;
  address->ring_rkey = fixed.ring_rkey;
  address->most_batches = fixed.most_batches;
  address->mtu = fixed.mtu;
  address->read_depth = fixed.read_depth;
  address->queue_pairs = fixed.queue_pairs;
  address->lid = fixed.lid;
  address->ethernet = fixed.ethernet != 0;
  address->ring_window = fixed.ring_window != 0;
  std::memcpy(address->gid.data(), fixed.gid, address->gid.size());
  for (int i = 0; i < kMaxQueuePairs; ++i) {
    address->queue_pair[i] = {fixed.number[i], fixed.first_psn[i]};
  }
  address->token.assign(fixed.token, kTokenLength);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
