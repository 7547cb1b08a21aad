// The one copy of a tensor whose bytes no peer can read, or may change.
#pragma once

#include <string_view>

#include "memory/arena.h"
#include "memory/slot_pools.h"
#include "protocol/tensor.h"

namespace rdma_transport {

// Copies the tensor's bytes into the arena, into a block of the pool `site` if possible. Returns
// false if there is no memory for it.
bool Stage(memory::Arena* arena, memory::SlotPools* slots, std::string_view site, Outgoing* tensor);

}  // namespace rdma_transport
