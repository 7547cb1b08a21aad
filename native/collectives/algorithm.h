// The choice between the algorithms of a collective: the only place that knows the measurements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "collectives/types.h"

namespace rdma_transport::collectives {

enum class Algorithm : uint8_t {
  kRounds,     // each member stages its part for all that need it: one step for each round
  kTwoPhases,  // each member combines or passes on its share, and distributes it: two steps
  kTwoLevels,  // steps on each host and across the hosts take turns: three to five for each chunk
};

// Which members map each other's memory.
enum class Reach : uint8_t {
  kAll,   // all
  kHost,  // those of the same host; see FindHosts(). What suits kSome works here, too
  kSome,  // any others, or none
};

// `bytes`: of the arrays. All members must pass the same arguments.
Algorithm Choose(Collective collective, size_t bytes, int members, Reach reach);

// From this size on, arrays that all members have registered are read where they lie.
constexpr size_t kMinDirect = size_t{256} << 10;

// Names what members must have in common to take the same steps, and to understand each other: the
// version of what they send, the sizes above, and the byte order. Members compare it before they
// connect.
std::string Protocol();

// Spans up to this many bytes travel in a notification. Below the limit of all fabrics.
constexpr size_t kMaxInline = size_t{8} << 10;

}  // namespace rdma_transport::collectives
