#include "fabric/libfabric/wire.h"

#include <cstring>

#include "base/printable.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr size_t kProviderLength = 32;
constexpr uint32_t kMaxFrames = 65536;

}  // namespace

std::string ChannelAddress::Encode() const {
  const AddressPart part = *this;
  std::string padded = provider.substr(0, kProviderLength);
  padded.resize(kProviderLength);
  return std::string(reinterpret_cast<const char*>(&part), sizeof(part)) + padded + name + token;
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  AddressPart part;
  const Status malformed(Code::kInvalidArgument, "a malformed libfabric address");
  constexpr size_t kBefore = sizeof(part) + kProviderLength;
  constexpr size_t kLeast = kBefore + 1 + kTokenLength;
  if (bytes.size() < kLeast || bytes.size() > kLeast + kMaxName) return malformed;
  std::memcpy(&part, bytes.data(), sizeof(part));
  if (part.number == 0 || part.number > kMaxChannels || part.frames < 8 ||
      part.frames > kMaxFrames || part.tag == 0) {
    return malformed;
  }
  static_cast<AddressPart&>(*address) = part;
  const char* provider = bytes.data() + sizeof(part);
  address->provider = Printable({provider, strnlen(provider, kProviderLength)}, kProviderLength);
  address->token = bytes.substr(bytes.size() - kTokenLength);
  address->name = bytes.substr(kBefore, bytes.size() - kBefore - kTokenLength);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::libfabric
