#include "fabric/verbs/gid.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bitset>
#include <charconv>
#include <cstring>

namespace rdma_transport::fabric::verbs {
namespace {

constexpr size_t kIpv4Offset = 12;  // of the address in its GID
constexpr int kUsualIpv4Bits = 24;
constexpr int kUsualIpv6Bits = 64;
// Of a GID of InfiniBand that is routed, whose prefix is 10 bits of a site-local one, 22 zeros, 16
// bits of the LID for routers and 16 of the subnet's number (net_ib of NCCL, ib_iface.c of UCX).
constexpr size_t kRouterLid = 4;
constexpr size_t kSubnetNumber = 6;

int BitsOf(const void* mask, size_t length) {
  int bits = 0;
  for (size_t i = 0; i < length; ++i) {
    bits += static_cast<int>(std::bitset<8>(static_cast<const uint8_t*>(mask)[i]).count());
  }
  return bits;
}

// Returns the bits of the netmask if the interface address is that of the GID, otherwise -1.
int MatchingBits(const ifaddrs& entry, const uint8_t* gid) {
  if (entry.ifa_addr == nullptr || entry.ifa_netmask == nullptr) return -1;
  if (entry.ifa_addr->sa_family == AF_INET && IsIpv4(gid)) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask);
    if (std::memcmp(&address->sin_addr, gid + kIpv4Offset, 4) != 0) return -1;
    return static_cast<int>(kIpv4Offset) * 8 + BitsOf(&mask->sin_addr, 4);
  }
  if (entry.ifa_addr->sa_family == AF_INET6 && !IsIpv4(gid)) {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    const auto* mask = reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask);
    return std::memcmp(&address->sin6_addr, gid, 16) == 0 ? BitsOf(&mask->sin6_addr, 16) : -1;
  }
  return -1;
}

}  // namespace

const char* GidTypeName(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
  }
  return "";
}

bool Gid::SameAs(const Gid& other) const {
  return type == other.type && std::memcmp(bytes.raw, other.bytes.raw, sizeof(bytes.raw)) == 0;
}

std::string Gid::Text() const {
  in6_addr address;
  std::memcpy(&address, bytes.raw, sizeof(address));
  char text[INET6_ADDRSTRLEN] = "";
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, bytes.raw + 12, text, sizeof(text));
  } else {
    inet_ntop(AF_INET6, bytes.raw, text, sizeof(text));
  }
  return text;
}

bool GidRange::Has(const Gid& gid) const {
  const int whole = bits / 8;
  if (std::memcmp(gid.bytes.raw, first.raw, static_cast<size_t>(whole)) != 0) return false;
  const int rest = bits % 8;
  return rest == 0 || (gid.bytes.raw[whole] ^ first.raw[whole]) >> (8 - rest) == 0;
}

bool ParseGidRange(const std::string& text, GidRange* range) {
  constexpr int kBits = 128;
  constexpr int kMapped = 96;  // bits before an IPv4 address
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return false;
  const std::string address = text.substr(0, slash);
  GidRange parsed;
  int before = 0;
  if (inet_pton(AF_INET6, address.c_str(), parsed.first.raw) != 1) {
    before = kMapped;
    parsed.first.raw[10] = parsed.first.raw[11] = 0xff;
    if (inet_pton(AF_INET, address.c_str(), parsed.first.raw + 12) != 1) return false;
  }
  const char* const end = text.data() + text.size();
  const auto number = std::from_chars(text.data() + slash + 1, end, parsed.bits);
  if (number.ec != std::errc() || number.ptr != end || parsed.bits < 0) return false;
  parsed.bits += before;
  if (parsed.bits > kBits) return false;
  *range = parsed;
  return true;
}

bool IsIpv4(const uint8_t* gid) {
  constexpr uint8_t kPrefix[kIpv4Offset] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(std::begin(kPrefix), std::end(kPrefix), gid);
}

int SubnetBits(const Gid& gid, bool ethernet) {
  const int usual =
      IsIpv4(gid.bytes.raw) ? static_cast<int>(kIpv4Offset) * 8 + kUsualIpv4Bits : kUsualIpv6Bits;
  ifaddrs* entries = nullptr;
  if (!ethernet || getifaddrs(&entries) != 0) return usual;
  int bits = -1;
  for (const ifaddrs* entry = entries; entry != nullptr && bits < 0; entry = entry->ifa_next) {
    bits = MatchingBits(*entry, gid.bytes.raw);
  }
  freeifaddrs(entries);
  return bits < 0 ? usual : bits;
}

uint16_t RouterLid(const uint8_t* gid) {
  const bool site_local = gid[0] == 0xfe && (gid[1] & 0xc0) == 0xc0;
  return site_local ? static_cast<uint16_t>(gid[kRouterLid] << 8 | gid[kRouterLid + 1]) : 0;
}

bool SameSubnetOfInfiniBand(const uint8_t* a, const uint8_t* b) {
  const bool both = RouterLid(a) != 0 && RouterLid(b) != 0;
  return std::memcmp(a, b, kRouterLid) == 0 &&
         (both || std::memcmp(a + kRouterLid, b + kRouterLid, 2) == 0) &&
         std::memcmp(a + kSubnetNumber, b + kSubnetNumber, 2) == 0;
}

}  // namespace rdma_transport::fabric::verbs
