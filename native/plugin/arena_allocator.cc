#include "plugin/arena_allocator.h"

#include <string_view>

#include "memory/extent_allocator.h"
#include "plugin/allocation_site.h"
#include "plugin/mutable_buffers.h"

namespace rdma_transport {

void* ArenaAllocator::AllocateRaw(size_t alignment, size_t num_bytes) {
  if (arena_ == nullptr || num_bytes <= min_bytes_ ||
      alignment > memory::ExtentAllocator::kAlignment) {
    return base_->AllocateRaw(alignment, num_bytes);
  }
  char* memory = nullptr;
  if (!slots_->active()) {
    memory = arena_->Allocate(num_bytes);
  } else {
    const std::string_view site = AllocationSite();
    memory = slots_->Allocate(site, num_bytes);
    if (memory == nullptr) {
      memory = arena_->Allocate(num_bytes);
      if (memory != nullptr && slots_->tracing()) slots_->Trace(memory, site, num_bytes);
    }
  }
  trimmer_->NoteUse();
  return memory != nullptr ? memory : base_->AllocateRaw(alignment, num_bytes);
}

void ArenaAllocator::DeallocateRaw(void* ptr) {
  MutableBuffers::Get().Forget(ptr);
  if (arena_ == nullptr || !arena_->Contains(ptr)) return base_->DeallocateRaw(ptr);
  trimmer_->NoteUse();
  auto* address = static_cast<char*>(ptr);
  if (!slots_->active() || !slots_->Free(address)) arena_->Free(address);
}

}  // namespace rdma_transport
