#pragma once

#include <cstdint>

#include "base/status.h"
#include "protocol/counters.h"

namespace rdma_transport {

// How a send went. `elsewhere`: the fabric cannot carry it, and why; nothing was sent. `silent`:
// neither was anything, because the peer does not answer; the link may come back to life.
struct SendOutcome {
  Status status;
  const char* elsewhere = nullptr;
  uint64_t number = 0;  // of the notification that tells of the tensor
  bool silent = false;
  // For a timeline: the way it went, and what the receiver gives back.
  Mode mode = Mode::kInline;
  uint64_t handle = 0;
};

}  // namespace rdma_transport
