#pragma once

#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"
#include "memory/slot_pools.h"
#include "protocol/counters.h"

namespace rdma_transport {

// What a link and its parts use. Everything here must outlive the link.
struct LinkContext {
  fabric::Device* device;
  memory::Arena* arena;
  memory::SlotPools* slots;      // of `arena`
  memory::Arena* receive_arena;  // slots that peers write into
  const Settings* settings;
  Traffic* traffic;  // counters for this peer; names both tasks
};

}  // namespace rdma_transport
