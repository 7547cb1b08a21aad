#pragma once

#include <cstdint>

#include "base/status.h"
#include "protocol/counters.h"

namespace rdma_transport {

// The result of a send. If `elsewhere` is set, the fabric cannot carry the tensor, for this reason,
// and nothing was sent. If `silent`, nothing was sent because the peer does not answer; the link
// may recover.
struct SendOutcome {
  Status status;
  const char* elsewhere = nullptr;
  uint64_t number = 0;  // of the tensor's notification
  bool silent = false;
  // For timelines: the mode, and the handle that the receiver releases.
  Mode mode = Mode::kInline;
  uint64_t handle = 0;
};

}  // namespace rdma_transport
