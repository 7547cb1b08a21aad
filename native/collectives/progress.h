// Waits until all members of a group have reached a step. A member spins for a short time, then
// lets other threads run, and then sleeps in the kernel until the member that it waits for wakes
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/board.h"

namespace rdma_transport::collectives {

// Waits look for lost members and interruptions this often.
constexpr Nanos kCheckInterval = 100 * kMillisecond;

// How long a wait lasts, and what else ends it.
struct Patience {
  Nanos deadline = INT64_MAX;  // a time of Now()
  // Called about every 100 ms by a wait that lasts longer; true ends it. May be null.
  bool (*interrupted)() = nullptr;
};

// Not thread-safe, except for Wake() and WakeAll().
class Progress {
 public:
  // Polls the device until `done` returns true, or nothing has happened for a while.
  using Helper = std::function<void(const std::function<bool()>& done)>;

  // `boards` are those of all ranks. `lost(rank)` returns OK, or why that member makes no more
  // progress; it may be called by any thread of this object. `spin`: how long a wait spins.
  Progress(int rank, Board* own, std::vector<const Board*> boards, Nanos spin,
           std::function<Status(int rank)> lost);
  // From now on, waits for the members `remote`, whose boards are replicas, poll the device
  // themselves, so that no other thread has to be woken for each step.
  void PollFor(const std::vector<int>& remote, Helper helper);

  // Announces to the members that map this one's memory that it has completed one more step.
  void Advance();
  // The steps that this member has completed.
  uint32_t step() const { return step_; }
  // Waits until all members have completed as many steps as this one, or `behind` fewer. Returns
  // the error of a lost member that has not, DeadlineExceeded, or Cancelled if interrupted.
  Status WaitForAll(const Patience& patience, uint32_t behind = 0);

  // Whether a member has completed more steps than this one.
  bool Ahead() const;
  // The members that have completed fewer steps than this one.
  std::vector<int> Behind() const;
  // Waits until Ahead(), until `ready` returns true, or until `deadline`. May return early.
  void WaitForStart(Nanos deadline, const std::function<bool()>& ready);
  // Makes WaitForStart() look again. Thread-safe.
  void Wake() const { WakeIdle(own_); }

  // Stores in the replica of a board that its owner, `rank`, has completed `step` steps, and wakes
  // the member of the board `own`, which is this process's, if it sleeps for that.
  static void Set(Board* replica, uint32_t step, Board* own, int rank);

  // Makes waits in this process look again for lost members. Thread-safe.
  void WakeAll() const;

 private:
  bool Reached(int rank, uint32_t step) const {
    const uint32_t done = boards_[rank]->progress.load(std::memory_order_acquire);
    return static_cast<int32_t>(done - step) >= 0;
  }
  Status WaitFor(int rank, uint32_t step, const Patience& patience);
  void SpinFor(int rank, uint32_t step) const;
  static void WakeIdle(Board* own);
  void WakeOthers();
  Status CheckLost(uint32_t step) const;
  void Sleep(int rank, uint32_t step) const;

  const int rank_;
  Board* const own_;
  const std::vector<const Board*> boards_;
  const Nanos spin_;
  const int pauses_;  // before other threads may run
  const std::function<Status(int)> lost_;
  std::vector<bool> polled_;  // by rank; none before PollFor()
  Helper helper_;
  uint32_t step_ = 0;
  bool unwoken_ = false;  // a member was about to sleep when it was woken
};

}  // namespace rdma_transport::collectives
