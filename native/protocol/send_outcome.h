#pragma once

#include <cstdint>

#include "base/status.h"

namespace rdma_transport {

// How a send went. `elsewhere`: the fabric cannot carry it, and why; nothing was sent.
struct SendOutcome {
  Status status;
  const char* elsewhere = nullptr;
  uint64_t number = 0;  // of the notification that tells of the tensor
};

}  // namespace rdma_transport
