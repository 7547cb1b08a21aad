#include "tensorflow/arena_allocator.h"

#include "memory/extent_allocator.h"
#include "tensorflow/mutable_buffers.h"

namespace rdma_transport {

void* ArenaAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  if (arena_ != nullptr && num_bytes > min_bytes_ &&
      alignment <= memory::ExtentAllocator::kAlignment) {
    void* memory = arena_->Allocate(num_bytes);
    if (memory != nullptr) return memory;
  }
  return base_->AllocateRaw(alignment, num_bytes);
}

void ArenaAllocator::DeallocateRaw(void* ptr) {
  if (arena_ == nullptr || !arena_->Contains(ptr)) return base_->DeallocateRaw(ptr);
  MutableBuffers::Get().Forget(ptr);
  arena_->Free(static_cast<char*>(ptr));
}

}  // namespace rdma_transport
