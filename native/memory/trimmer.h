// Returns memory that is not used any more to the system, also while a process is idle.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "memory/arena.h"
#include "memory/slot_pools.h"

namespace rdma_transport::memory {

// Thread-safe, except that one thread at a time may call Tick(), or the destructor.
class Trimmer {
 public:
  using Work = std::function<void()>;

  // `wake` makes Tick() run regularly, until it returns false. The others must outlive this object.
  Trimmer(SlotPools* slots, Arena* arena, Arena* receive_arena, Work wake);
  // Waits for work that is running. What `run` has not run yet does nothing any more.
  ~Trimmer();

  // Memory was allocated or freed. Cheap.
  void NoteUse() {
    if (quiet_.load(std::memory_order_relaxed) != 0 && quiet_.exchange(0) >= kQuiet) wake_();
  }
  // Once in kTrimInterval, calls `run` with work that returns to the system what has not been used
  // since the last time. When nothing was used for several times, this includes all memory that is
  // empty. Returns whether it must be called again.
  bool Tick(Nanos now, const std::function<void(Work)>& run);

 private:
  // What has been free for long is returned by the second time, a slab that held it by the third.
  static constexpr int kQuiet = 4;

  struct Target {
    std::mutex mu;
    SlotPools* slots;  // null: the others are gone
    Arena* arenas[2];

    void Trim(bool all);
  };

  const Work wake_;
  const std::shared_ptr<Target> target_;
  std::atomic<int> quiet_{kQuiet};  // calls of Trim() since the last use
  Nanos next_ = 0;                  // used by Tick()
};

}  // namespace rdma_transport::memory
