#include "memory/trimmer.h"

#include <utility>

#include "memory/slot_policy.h"

namespace rdma_transport::memory {

Trimmer::Trimmer(SlotPools* slots, Arena* arena, Arena* receive_arena, Work wake)
    : wake_(std::move(wake)), target_(std::make_shared<Target>()) {
  target_->slots = slots;
  target_->arenas[0] = arena;
  target_->arenas[1] = receive_arena;
}

Trimmer::~Trimmer() {
  std::lock_guard<std::mutex> lock(target_->mu);
  target_->slots = nullptr;
}

bool Trimmer::Tick(Nanos now, const std::function<void(Work)>& run) {
  if (quiet_.load() >= kQuiet) return false;
  if (now < next_) return true;
  next_ = now + kTrimInterval;
  const bool last = quiet_.fetch_add(1) + 1 >= kQuiet;
  run([target = target_, last] { target->Trim(last); });
  return !last;
}

void Trimmer::Target::Trim(bool all) {
  std::lock_guard<std::mutex> lock(mu);
  if (slots == nullptr) return;
  slots->ReleaseUnused();
  for (Arena* arena : arenas) {
    arena->ReleaseUnused();
    if (all) arena->ReleaseEmptySlabsIfIdle();
  }
}

}  // namespace rdma_transport::memory
