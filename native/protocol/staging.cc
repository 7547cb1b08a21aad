#include "protocol/staging.h"

#include <cstring>
#include <utility>

#include "memory/block.h"

namespace rdma_transport {

bool Stage(memory::Arena* arena, memory::SlotPools* slots, std::string_view site,
           Outgoing* tensor) {
  OwnerRef owner;
  char* copy = memory::AllocateBlock(arena, slots, site, tensor->bytes, &owner);
  if (copy == nullptr) return false;
  std::memcpy(copy, tensor->data, tensor->bytes);
  tensor->data = copy;
  tensor->block = copy;
  tensor->mutable_source = false;
  tensor->owner = std::move(owner);
  Counters& counters = GlobalCounters();
  counters.copied_bytes.fetch_add(tensor->bytes, std::memory_order_relaxed);
  counters.staged_tensors.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace rdma_transport
