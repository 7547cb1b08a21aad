// The address of a striped channel: one plain address for each rail, and which rails of two ends
// are connected with each other.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric::striped {

// Rails of one channel.
constexpr size_t kMaxRails = 8;

struct RailAddress {
  std::string name;     // of the port
  std::string subnet;   // empty: not known
  std::string address;  // of the plain channel; empty: the port is down
};

struct ChannelAddress {
  size_t most_rails = kMaxRails;  // that this end wants
  std::vector<RailAddress> rails;

  std::string Encode() const;
  // Returns InvalidArgument if the bytes are malformed.
  static Status Decode(std::string_view bytes, ChannelAddress* address);
};

// Two rails, by their indexes in the addresses of their ends.
struct Match {
  size_t own = 0;
  size_t peer = 0;
};

// Returns which rails to connect, the best first, each in at most one match. Both ends compute the
// same: those of equal subnet and name, those of one subnet, those of equal name, and then by their
// order. Once two ports share a subnet, packets between others are not routed. Rails that are down
// come last. `reaches` returns whether packets of an own rail can reach one of the peer.
std::vector<Match> MatchRails(const ChannelAddress& own, const ChannelAddress& peer, Role role,
                              const std::function<bool(const Match&)>& reaches);

}  // namespace rdma_transport::fabric::striped
