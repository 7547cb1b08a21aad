// What two tasks tell each other, over TensorFlow's own connections, before they share a channel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace rdma_transport {

// A task and the life of it: a restarted task has another incarnation.
struct Identity {
  std::string task;  // "/job:worker/replica:0/task:1"
  uint64_t incarnation = 0;
};

// A 32-bit length and the bytes, so that what follows cannot be mistaken for a part of it.
void PutField(std::string_view field, std::string* out);

struct BootstrapRequest {
  uint32_t version = 0;
  Identity from;
  std::string channel;  // the asker's channel address
  std::string nonce;    // both empty where the asker has no secret: see handshake.h
  std::string mac;

  std::string Fields() const;  // all but `mac`
  std::string Encode() const;
  static Status Decode(std::string_view bytes, BootstrapRequest* request);
};

struct BootstrapReply {
  uint32_t version = 0;
  Identity from;
  std::string channel;  // empty: refused
  std::string refusal;  // why
  bool again = false;   // of a refusal: it was for want of something that may be there later
  std::string nonce;
  std::string mac;

  std::string Fields() const;  // all but `mac`
  std::string Encode() const;
  static Status Decode(std::string_view bytes, BootstrapReply* reply);
};

// Carries a request to a peer and its reply back; `done` is called exactly once, from any thread.
//   InvalidArgument, Unimplemented: the peer has no plugin.   Unavailable: it cannot be reached.
using BootstrapCall = std::function<void(std::string request, Nanos timeout,
                                         std::function<void(Status, std::string reply)> done)>;

}  // namespace rdma_transport
