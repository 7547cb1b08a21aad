// The messages that two tasks exchange over TensorFlow's own connections before they share a
// channel.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace rdma_transport {

// A task and its incarnation, which changes when the task restarts.
struct Identity {
  std::string task;  // "/job:worker/replica:0/task:1"
  uint64_t incarnation = 0;
};

// Appends a 32-bit length and the bytes, so that adjacent fields cannot be confused.
void PutField(std::string_view field, std::string* out);

// What a task sends to connect to another one. Decode() returns InvalidArgument for other bytes.
struct BootstrapRequest {
  uint32_t version = 0;
  Identity from;
  std::string channel;  // the sender's channel address; empty with an offer
  std::string nonce;    // both empty if the sender has no secret; see handshake.h
  std::string mac;
  // How two tasks share a link; see pairing.h.
  std::string link;   // the ID of the requested link; empty if it cannot be shared
  std::string offer;  // instead of `channel`: the ID of a link that the receiver may have requested
  bool insist = false;  // the reply must not be a link that the receiver has requested

  std::string Fields() const;  // all but `mac`
  std::string Encode() const;
  static Status Decode(std::string_view bytes, BootstrapRequest* request);
};

// The answer: the address of a channel, or a refusal. Decode() as above.
struct BootstrapReply {
  uint32_t version = 0;
  Identity from;
  std::string channel;  // empty if refused, or with `use`
  std::string refusal;  // the reason
  bool again = false;   // of a refusal: a retry may succeed later
  std::string nonce;
  std::string mac;
  std::string use;      // instead of `channel`: the ID of a link that the sender requested itself
  bool use_up = false;  // that link is up there

  std::string Fields() const;  // all but `mac`
  std::string Encode() const;
  static Status Decode(std::string_view bytes, BootstrapReply* reply);
};

// Sends a request to a peer. Calls `done` exactly once, on any thread, with the reply or with
// InvalidArgument or Unimplemented if the peer has no plugin, or Unavailable if it cannot be
// reached.
using BootstrapCall = std::function<void(std::string request, Nanos timeout,
                                         std::function<void(Status, std::string reply)> done)>;

}  // namespace rdma_transport
