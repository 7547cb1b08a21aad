// The messages on a channel's local socket: one structure of fixed size per message. Both ends run
// on one host and the same version, which the bootstrap has checked.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "fabric/greeting.h"

namespace rdma_transport::fabric::shm {

enum class MessageType : uint32_t { kHello = 1, kAccept, kRegion, kWithdraw, kBye, kWake, kRefuse };

struct Hello {  // also for kAccept; carries the descriptor of the ring
  MessageType type;
  uint32_t reserved;
  uint64_t device_id;  // of the sender; the same for all its channels
  char greeting[kGreetingBytes];
};

struct RegionMessage {  // carries the descriptor of the memory file
  MessageType type;
  uint32_t writable;
  uint64_t key;
  uint64_t length;
};

// Of kWithdraw: a region of the sender that the receiver may no longer use. Of kRefuse: a region of
// the receiver that the sender cannot map.
struct RegionKey {
  MessageType type;
  uint64_t key;
};

// The sender has closed the channel. It may still read memory of the receiver until its stream
// ends.
struct Bye {
  MessageType type;
  int32_t code;
  char reason[256];
};

// There are records in the ring of a sleeping consumer.
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
