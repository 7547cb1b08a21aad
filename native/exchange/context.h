// What exchanges work with; all outlive them.
#pragma once

#include "base/clock.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

namespace rdma_transport::exchange {

// How soon somebody who waits sees that he is cancelled.
constexpr Nanos kCancellationSlice = 20 * kMillisecond;

struct Context {
  fabric::Device* device;
  memory::Arena* arena;  // where the responder stages what its fabric cannot reach
  memory::Arena* sink;   // where the caller lets payloads land
  const Settings* settings;
};

}  // namespace rdma_transport::exchange
