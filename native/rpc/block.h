// A block of an arena, freed with its owner.
#pragma once

#include <cstddef>

#include "memory/arena.h"
#include "protocol/owner_ref.h"

namespace rdma_transport::rpc {

// Allocates a block that `owner` frees. Returns null if the arena has no room. The arena must
// outlive `owner`.
inline char* AllocateBlock(memory::Arena* arena, size_t bytes, OwnerRef* owner) {
  struct Block {
    memory::Arena* arena;
    char* data;
    static void Free(void* block) {
      auto* freed = static_cast<Block*>(block);
      freed->arena->Free(freed->data);
      delete freed;
    }
  };
  char* data = arena->Allocate(bytes);
  if (data != nullptr) *owner = OwnerRef(new Block{arena, data}, &Block::Free);
  return data;
}

}  // namespace rdma_transport::rpc
