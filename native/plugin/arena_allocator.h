// The CPU allocator of an rdma server's devices: tensors that may cross are born in the arena.
#pragma once

#include <string>

#include "memory/arena.h"
#include "memory/slot_pools.h"
#include "tensorflow/core/framework/allocator.h"

namespace rdma_transport {

// Small tensors, and those for which the arena has no room, come from `base`; what an operation
// allocates whose results are sent step after step comes from that operation's pool. Thread-safe.
class ArenaAllocator final : public tensorflow::Allocator {
 public:
  // `arena` and `slots` may be null: then everything comes from `base`. All outlive this.
  ArenaAllocator(memory::Arena* arena, memory::SlotPools* slots, size_t min_bytes,
                 tensorflow::Allocator* base)
      : arena_(arena), slots_(slots), min_bytes_(min_bytes), base_(base) {}

  std::string Name() override { return "rdma_arena"; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* ptr) override;

 private:
  memory::Arena* const arena_;
  memory::SlotPools* const slots_;
  const size_t min_bytes_;
  tensorflow::Allocator* const base_;
};

}  // namespace rdma_transport
