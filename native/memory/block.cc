#include "memory/block.h"

namespace rdma_transport::memory {
namespace {

struct Block {
  Arena* arena;
  SlotPools* slots;  // null: not of a pool
  char* data;

  ~Block() {
    if (slots == nullptr || !slots->Free(data)) arena->Free(data);
  }
  static void Delete(void* block) { delete static_cast<Block*>(block); }
};

}  // namespace

char* AllocateBlock(Arena* arena, uint64_t bytes, OwnerRef* owner) {
  return AllocateBlock(arena, nullptr, {}, bytes, owner);
}

char* AllocateBlockIfThere(Arena* arena, uint64_t bytes, OwnerRef* owner) {
  char* data = arena->AllocateIfThere(bytes);
  if (data != nullptr) *owner = OwnerRef(new Block{arena, nullptr, data}, &Block::Delete);
  return data;
}

char* AllocateBlock(Arena* arena, SlotPools* slots, std::string_view site, uint64_t bytes,
                    OwnerRef* owner) {
  char* data = site.empty() ? nullptr : slots->Allocate(site, bytes);
  if (data == nullptr) data = arena->Allocate(bytes);
  if (data != nullptr) *owner = OwnerRef(new Block{arena, slots, data}, &Block::Delete);
  return data;
}

}  // namespace rdma_transport::memory
