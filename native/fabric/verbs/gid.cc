#include "fabric/verbs/gid.h"

#include <arpa/inet.h>
#include <netinet/in.h>

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

}  // namespace rdma_transport::fabric::verbs
