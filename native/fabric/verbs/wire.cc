#include "fabric/verbs/wire.h"

#include <algorithm>
#include <cstring>

#include "base/settings.h"

namespace rdma_transport::fabric::verbs {
namespace {

// A FixedPart, the ports, the queue pairs and the token follow each other. Both ends are
// little-endian, and the bootstrap has compared their protocol versions.
struct FixedPart {
  uint64_t ring_size;
  uint64_t ring_limit;
  uint32_t most_batches;
  uint16_t ports;
  uint16_t queue_pairs;
  uint32_t rails;
  uint32_t unused;
};

struct PortPart {
  uint64_t ring_address;
  uint32_t ring_rkey;
  uint32_t mtu;
  uint32_t read_depth;
  uint16_t lid;
  uint8_t ethernet;
  uint8_t active;
  uint8_t ring_window;
  uint8_t subnet_bits;
  uint8_t known;
  uint8_t unused[5];
  uint8_t gid[16];
};

struct PairPart {
  uint32_t number;
  uint32_t first_psn;
  uint32_t port;
};

template <typename Part>
void Append(const Part& part, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&part), sizeof(part));
}

template <typename Part>
Part Take(std::string_view* bytes) {
  Part part;
  std::memcpy(&part, bytes->data(), sizeof(part));
  bytes->remove_prefix(sizeof(part));
  return part;
}

PortPart PartOf(const ChannelAddress::Port& port) {
  PortPart part = {};
  part.ring_address = port.ring_address;
  part.ring_rkey = port.ring_rkey;
  part.mtu = port.mtu;
  part.read_depth = port.read_depth;
  part.lid = port.lid;
  part.ethernet = port.ethernet ? 1 : 0;
  part.active = port.active ? 1 : 0;
  part.ring_window = port.ring_window ? 1 : 0;
  part.subnet_bits = static_cast<uint8_t>(port.subnet_bits);
  part.known = port.known ? 1 : 0;
  std::memcpy(part.gid, port.gid.data(), port.gid.size());
  return part;
}

ChannelAddress::Port PortOf(const PortPart& part) {
  ChannelAddress::Port port;
  port.ring_address = part.ring_address;
  port.ring_rkey = part.ring_rkey;
  port.mtu = part.mtu;
  port.read_depth = part.read_depth;
  port.lid = part.lid;
  port.ethernet = part.ethernet != 0;
  port.active = part.active != 0;
  port.ring_window = part.ring_window != 0;
  port.subnet_bits = std::min<int>(part.subnet_bits, 128);
  port.known = part.known != 0;
  std::memcpy(port.gid.data(), part.gid, port.gid.size());
  return port;
}

}  // namespace

std::string ChannelAddress::Encode() const {
  FixedPart fixed = {};
  fixed.ring_size = ring_size;
  fixed.ring_limit = ring_limit;
  fixed.most_batches = most_batches;
  fixed.ports = static_cast<uint16_t>(ports.size());
  fixed.queue_pairs = static_cast<uint16_t>(queue_pairs.size());
  fixed.rails = rails;
  std::string bytes;
  Append(fixed, &bytes);
  for (const Port& port : ports) Append(PartOf(port), &bytes);
  for (const QueuePair& pair : queue_pairs) {
    Append(PairPart{pair.number, pair.first_psn, pair.port}, &bytes);
  }
  return bytes.append(token);
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  const Status malformed(Code::kInvalidArgument, "a malformed verbs address");
  if (bytes.size() < sizeof(FixedPart)) return malformed;
  const auto fixed = Take<FixedPart>(&bytes);
  // This side pins a mirror as large as the peer's ring.
  const auto whole = [](uint64_t size) { return size % kRingGranule == 0; };
  if (fixed.ports == 0 || fixed.queue_pairs < fixed.ports || fixed.queue_pairs > kMaxQueuePairs ||
      !whole(fixed.ring_size) || fixed.ring_size < kFirstRing ||
      fixed.ring_size > fixed.ring_limit || !whole(fixed.ring_limit) ||
      fixed.ring_limit < VerbsSettings::kMinRing || fixed.ring_limit > VerbsSettings::kMaxRing ||
      fixed.rails == 0 || fixed.most_batches == 0 ||
      fixed.most_batches > VerbsSettings::kMaxQueueDepth ||
      bytes.size() !=
          fixed.ports * sizeof(PortPart) + fixed.queue_pairs * sizeof(PairPart) + kTokenLength) {
    return malformed;
  }
  address->ring_size = fixed.ring_size;
  address->ring_limit = fixed.ring_limit;
  address->most_batches = fixed.most_batches;
  address->rails = fixed.rails;
  address->ports.clear();
  for (int i = 0; i < fixed.ports; ++i) address->ports.push_back(PortOf(Take<PortPart>(&bytes)));
  address->queue_pairs.clear();
  for (int i = 0; i < fixed.queue_pairs; ++i) {
    const auto part = Take<PairPart>(&bytes);
    if (part.port >= fixed.ports) return malformed;
    address->queue_pairs.push_back({part.number, part.first_psn, part.port});
  }
  address->token.assign(bytes);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
