// The CPU allocator of an rdma server's devices: allocates tensors that may be sent in the arena.
#pragma once

#include <string>

#include "memory/arena.h"
#include "memory/slot_pools.h"
#include "memory/trimmer.h"
#include "tensorflow/core/framework/allocator.h"

namespace rdma_transport {

// Allocates small tensors, and those for which the arena has no room, from `base`. An operation
// whose results are sent in step after step allocates from its own pool. Thread-safe.
class ArenaAllocator final : public tensorflow::Allocator {
 public:
  // If the first three are null, everything comes from `base`. All must outlive this.
  ArenaAllocator(memory::Arena* arena, memory::SlotPools* slots, memory::Trimmer* trimmer,
                 size_t min_bytes, tensorflow::Allocator* base)
      : arena_(arena), slots_(slots), trimmer_(trimmer), min_bytes_(min_bytes), base_(base) {}

  std::string Name() override { return "rdma_arena"; }
  void* AllocateRaw(size_t alignment, size_t num_bytes) override;
  void DeallocateRaw(void* ptr) override;

 private:
  memory::Arena* const arena_;
  memory::SlotPools* const slots_;
  memory::Trimmer* const trimmer_;
  const size_t min_bytes_;
  tensorflow::Allocator* const base_;
};

}  // namespace rdma_transport
