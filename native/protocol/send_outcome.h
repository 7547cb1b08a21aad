#pragma once

#include "base/status.h"

namespace rdma_transport {

// How a send went. `elsewhere`: the fabric cannot carry it, and why; nothing was sent.
struct SendOutcome {
  Status status;
  const char* elsewhere = nullptr;
};

}  // namespace rdma_transport
