// Blocks of an arena or of its slot pools that are freed with their owner.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/owner_ref.h"
#include "memory/arena.h"
#include "memory/slot_pools.h"

namespace rdma_transport::memory {

// Allocates a block that `owner` frees. Returns null if the arena has no room. The arena must
// outlive `owner`. Thread-safe.
char* AllocateBlock(Arena* arena, uint64_t bytes, OwnerRef* owner);

// The same, but returns null instead of adding a slab to the arena.
char* AllocateBlockIfThere(Arena* arena, uint64_t bytes, OwnerRef* owner);

// Allocates a block of the pool of `site` if possible, or else of the arena, as above. An empty
// `site` has no pool.
char* AllocateBlock(Arena* arena, SlotPools* slots, std::string_view site, uint64_t bytes,
                    OwnerRef* owner);

}  // namespace rdma_transport::memory
