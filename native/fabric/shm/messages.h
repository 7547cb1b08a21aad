// What travels on a channel's local socket. Fixed-size structures, one per message: both ends run
// on one host, built from one version (the bootstrap has compared versions before).
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "fabric/greeting.h"

namespace rdma_transport::fabric::shm {

enum class MessageType : uint32_t { kHello = 1, kAccept, kRegion, kForget, kBye, kWake };

struct Hello {  // and kAccept; descriptor: the ring
  MessageType type;
  uint32_t reserved;
  uint64_t device_id;  // the sender's, so that all its channels are known to lead to one memory
  char greeting[kGreetingBytes];
};

struct RegionMessage {  // descriptor: the memory file
  MessageType type;
  uint32_t writable;
  uint64_t key;
  uint64_t length;
};

struct Forget {
  MessageType type;
  uint64_t key;
};

// The sender has closed the channel. It may still read memory of the receiver, until its stream
// ends.
struct Bye {
  MessageType type;
  int32_t code;
  char reason[256];
};

// There is something in the ring of a consumer that sleeps.
struct Wake {
  MessageType type;
};

template <typename T>
std::string_view AsBytes(const T& message) {
  return std::string_view(reinterpret_cast<const char*>(&message), sizeof(message));
}

template <typename T>
Status FromBytes(std::string_view bytes, T* message) {
  if (bytes.size() != sizeof(T)) {
    return Status(Code::kDataLoss, "a message of a wrong size on the peer's local socket");
  }
  std::memcpy(message, bytes.data(), sizeof(T));
  return OkStatus();
}

inline MessageType TypeOf(std::string_view bytes) {
  MessageType type{};
  if (bytes.size() >= sizeof(type)) std::memcpy(&type, bytes.data(), sizeof(type));
  return type;
}

}  // namespace rdma_transport::fabric::shm
