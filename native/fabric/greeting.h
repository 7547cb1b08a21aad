// The greeting that the two ends of a new channel exchange first. It proves that an end knows both
// tokens, which the bootstrap exchanged, and the channel's key if there is one. It reveals none of
// them.
#pragma once

#include <string>
#include <string_view>

#include "base/hmac_sha256.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

constexpr size_t kGreetingBytes = kHmacBytes;

// Not thread-safe.
class Greeting {
 public:
  Greeting() = default;
  // All tokens must have the same length and be new for each channel, so that a greeting cannot be
  // reused for another channel. `key` may be empty.
  Greeting(std::string_view key, Role role, std::string_view own_token,
           std::string_view peer_token) {
    const bool active = role == Role::kActive;
    std::string proven(key);
    proven.append(active ? own_token : peer_token).append(active ? peer_token : own_token);
    const std::string hello = HmacSha256(proven, "rdma_transport hello");
    const std::string accept = HmacSha256(proven, "rdma_transport accept");
    own_ = active ? hello : accept;
    peers_ = active ? accept : hello;
  }

  // Returns the greeting of this end.
  const std::string& own() const { return own_; }
  // Compares with the expected greeting of the peer, in constant time.
  bool IsPeers(std::string_view shown) const {
    return !peers_.empty() && EqualInConstantTime(shown, peers_);
  }

 private:
  std::string own_;
  std::string peers_;
};

}  // namespace rdma_transport::fabric
