// What exchanges work with; all outlive them.
#pragma once

#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

namespace rdma_transport::exchange {

struct Context {
  fabric::Device* device;
  memory::Arena* arena;  // where the responder stages what its fabric cannot reach
  memory::Arena* sink;   // where the caller lets payloads land
  const Settings* settings;
};

}  // namespace rdma_transport::exchange
