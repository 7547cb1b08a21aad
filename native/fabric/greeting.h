// What the two ends of a new channel show each other first. It proves that an end knows what the
// bootstrap told, both tokens, and the channel's key where there is one, and shows none of it.
#pragma once

#include <string>
#include <string_view>

#include "base/hmac_sha256.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

constexpr size_t kGreetingBytes = kHmacBytes;

class Greeting {
 public:
  Greeting() = default;
  // The tokens are of one fixed length, and fresh for each channel, so that no greeting fits
  // another channel. `key` may be empty.
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

  // What this end shows.
  const std::string& own() const { return own_; }
  bool IsPeers(std::string_view shown) const {
    return !peers_.empty() && EqualInConstantTime(shown, peers_);
  }

 private:
  std::string own_;
  std::string peers_;
};

}  // namespace rdma_transport::fabric
