// What a shared-memory channel tells the other side through the bootstrap.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::shm {

constexpr size_t kTokenLength = 16;

struct ChannelAddress {
  std::string socket_name;  // abstract local socket of the process
  std::string token;        // random; whoever shows it on the socket was told it by the bootstrap

  std::string Encode() const { return token + socket_name; }
  static Status Decode(std::string_view bytes, ChannelAddress* address) {
    if (bytes.size() <= kTokenLength || bytes.size() > kTokenLength + 100) {
      return Status(Code::kInvalidArgument, "a malformed shared-memory address");
    }
    address->token = std::string(bytes.substr(0, kTokenLength));
    address->socket_name = std::string(bytes.substr(kTokenLength));
    return OkStatus();
  }
};

}  // namespace rdma_transport::fabric::shm
