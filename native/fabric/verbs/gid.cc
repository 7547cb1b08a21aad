#include "fabric/verbs/gid.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>
#include <cstring>

namespace rdma_transport::fabric::verbs {

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

}  // namespace rdma_transport::fabric::verbs
