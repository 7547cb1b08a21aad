#include "protocol/staging.h"

#include <cstring>

namespace rdma_transport {

bool Stage(memory::Arena* arena, memory::SlotPools* slots, std::string_view site,
           Outgoing* tensor) {
  char* copy = site.empty() ? nullptr : slots->Allocate(site, tensor->bytes);
  if (copy == nullptr) copy = arena->Allocate(tensor->bytes);
  if (copy == nullptr) return false;
  std::memcpy(copy, tensor->data, tensor->bytes);
  struct Block {
    memory::Arena* arena;
    memory::SlotPools* slots;
    char* address;
    ~Block() {
      if (!slots->Free(address)) arena->Free(address);
    }
  };
  tensor->data = copy;
  tensor->block = copy;
  tensor->mutable_source = false;
  tensor->owner =
      OwnerRef(new Block{arena, slots, copy}, [](void* held) { delete static_cast<Block*>(held); });
  Counters& counters = GlobalCounters();
  counters.copied_bytes.fetch_add(tensor->bytes, std::memory_order_relaxed);
  counters.staged_tensors.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace rdma_transport
