// The address of a shared-memory channel, which the bootstrap sends to the peer.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::shm {

constexpr size_t kTokenLength = 16;

struct ChannelAddress {
  std::string socket_name;  // abstract local socket of the process
  std::string token;        // random; proves knowledge of the address, see greeting.h

  std::string host;  // see host/identity.h

  std::string Encode() const {
    return token + static_cast<char>(socket_name.size()) + socket_name + host;
  }
  static Status Decode(std::string_view bytes, ChannelAddress* address) {
    const Status malformed(Code::kInvalidArgument, "a malformed shared-memory address");
    if (bytes.size() <= kTokenLength || bytes.size() > kTokenLength + 400) return malformed;
    address->token = std::string(bytes.substr(0, kTokenLength));
    const size_t length = static_cast<uint8_t>(bytes[kTokenLength]);
    bytes.remove_prefix(kTokenLength + 1);
    if (length == 0 || length > 100 || length > bytes.size()) return malformed;
    address->socket_name = std::string(bytes.substr(0, length));
    address->host = std::string(bytes.substr(length));
    return OkStatus();
  }
};

}  // namespace rdma_transport::fabric::shm
