#include "fabric/libfabric/wire.h"

#include <algorithm>
#include <cstring>

#include "base/printable.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t kProviderLength = 32;
constexpr uint32_t kMaxFrames = 65536;

// Both ends are little-endian, and the bootstrap has compared their protocol versions. The name
// follows, then the token.
struct Fixed {
  char provider[kProviderLength];
  uint64_t tag;
  uint64_t mark_address;
  uint64_t mark_key;
  uint32_t protocol;
  uint32_t protocol_version;
  uint32_t format;
  uint32_t number;
  uint32_t frames;
  uint32_t remote_data;
};

}  // namespace

std::string ChannelAddress::Encode() const {
  Fixed fixed = {};
  std::memcpy(fixed.provider, provider.data(), std::min(provider.size(), kProviderLength));
  fixed.tag = tag;
  fixed.mark_address = mark_address;
  fixed.mark_key = mark_key;
  fixed.protocol = protocol;
  fixed.protocol_version = protocol_version;
  fixed.format = format;
  fixed.number = number;
  fixed.frames = frames;
  fixed.remote_data = remote_data ? 1 : 0;
  return std::string(reinterpret_cast<const char*>(&fixed), sizeof(fixed)) + name + token;
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  Fixed fixed;
  const Status malformed(Code::kInvalidArgument, "a malformed libfabric address");
  const size_t least = sizeof(fixed) + 1 + kTokenLength;
  if (bytes.size() < least || bytes.size() > least + kMaxName) return malformed;
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  if (fixed.number == 0 || fixed.number > kMaxChannels || fixed.frames < 8 ||
      fixed.frames > kMaxFrames || fixed.tag == 0) {
    return malformed;
  }
  const size_t name = bytes.size() - sizeof(fixed) - kTokenLength;
  address->provider =
      Printable({fixed.provider, strnlen(fixed.provider, kProviderLength)}, kProviderLength);
  address->tag = fixed.tag;
  address->mark_address = fixed.mark_address;
  address->mark_key = fixed.mark_key;
  address->protocol = fixed.protocol;
  address->protocol_version = fixed.protocol_version;
  address->format = fixed.format;
  address->number = fixed.number;
  address->frames = fixed.frames;
  address->remote_data = fixed.remote_data != 0;
  address->name = bytes.substr(sizeof(fixed), name);
  address->token = bytes.substr(sizeof(fixed) + name);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::libfabric
