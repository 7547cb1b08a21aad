#include "collectives/progress.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <string>
#include <utility>

#include "base/spin.h"

namespace rdma_transport::collectives {
namespace {

constexpr int kPauses = 600;  // 12 to 24 us
constexpr Nanos kRetry = kMillisecond;

// The word is in memory of another process, which this one maps read-only.
int Futex(const std::atomic<uint32_t>& word, int operation, uint32_t value,
          const timespec* timeout) {
  return static_cast<int>(syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0));
}

timespec TimeOf(Nanos nanos) {
  return {static_cast<time_t>(nanos / kSecond), static_cast<long>(nanos % kSecond)};
}

// Spinning only helps if the others run at the same time.
int PausesFor(size_t members) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const bool known = sched_getaffinity(0, sizeof(cpus), &cpus) == 0;
  return known && static_cast<size_t>(CPU_COUNT(&cpus)) < members ? 1 : kPauses;
}

}  // namespace

Progress::Progress(int rank, Board* own, std::vector<const Board*> boards, Nanos spin,
                   std::function<Status(int)> lost)
    : rank_(rank),
      own_(own),
      boards_(std::move(boards)),
      spin_(spin),
      pauses_(PausesFor(boards_.size())),
      lost_(std::move(lost)),
      polled_(boards_.size()) {}

void Progress::PollFor(const std::vector<int>& remote, Helper helper) {
  for (const int rank : remote) polled_[rank] = helper != nullptr;
  helper_ = std::move(helper);
}

void Progress::Advance() {
  // Sequentially consistent, like the sleeper's store and load: either this member sees that the
  // other one sleeps, or the other one sees the new value.
  own_->progress.store(++step_, std::memory_order_seq_cst);
  bool sleepers = false;
  const auto me = static_cast<uint32_t>(rank_ + 1);
  for (const Board* board : boards_) {
    sleepers |= board->sleeps_for.load(std::memory_order_seq_cst) == me;
  }
  if (sleepers) Futex(own_->progress, FUTEX_WAKE, INT_MAX, nullptr);
  WakeOthers();
}

void Progress::Set(Board* replica, uint32_t step, Board* own, int rank) {
  replica->progress.store(step, std::memory_order_seq_cst);
  if (own->sleeps_for.load(std::memory_order_seq_cst) == static_cast<uint32_t>(rank + 1)) {
    Futex(replica->progress, FUTEX_WAKE, INT_MAX, nullptr);
  }
  WakeIdle(own);
}

void Progress::WakeIdle(Board* own) {
  uint32_t asleep = 1;
  if (own->idle.load(std::memory_order_seq_cst) == 0) return;
  if (own->idle.compare_exchange_strong(asleep, 0)) {
    Futex(own->idle, FUTEX_WAKE, INT_MAX, nullptr);
  }
}

// This member cannot change the word of another one's futex. So waking one that is about to sleep
// has no effect, and must be repeated.
void Progress::WakeOthers() {
  unwoken_ = false;
  for (const Board* board : boards_) {
    if (board == own_ || board->idle.load(std::memory_order_seq_cst) == 0) continue;
    const bool woken = Futex(board->idle, FUTEX_WAKE, INT_MAX, nullptr) > 0;
    unwoken_ |= !woken && board->idle.load(std::memory_order_seq_cst) != 0;
  }
}

bool Progress::Ahead() const {
  for (const Board* board : boards_) {
    const uint32_t done = board->progress.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(done - step_) > 0) return true;
  }
  return false;
}

std::vector<int> Progress::Behind() const {
  std::vector<int> behind;
  for (int rank = 0; rank < static_cast<int>(boards_.size()); ++rank) {
    if (rank != rank_ && !Reached(rank, step_)) behind.push_back(rank);
  }
  return behind;
}

void Progress::WaitForStart(Nanos deadline, const std::function<bool()>& ready) {
  const auto done = [&] { return ready() || Ahead(); };
  for (int i = 0; i < pauses_; ++i) {
    if (done()) return;
    Pause();
  }
  for (const Nanos start = Now(); Now() - start < spin_;) {
    sched_yield();
    for (int i = 0; i < 32 && i < pauses_; ++i) {
      if (done()) return;
      Pause();
    }
  }
  own_->idle.store(1, std::memory_order_seq_cst);
  const Nanos left = deadline - Now();
  if (!done() && left > 0) {
    const timespec timeout = TimeOf(left);
    Futex(own_->idle, FUTEX_WAIT, 1, deadline == INT64_MAX ? nullptr : &timeout);
  }
  own_->idle.store(0, std::memory_order_seq_cst);
}

Status Progress::WaitForAll(const Patience& patience, uint32_t behind) {
  const uint32_t step = step_ - behind;
  const int size = static_cast<int>(boards_.size());
  for (int i = 1; i < size; ++i) {
    const int rank = (rank_ + i) % size;
    if (!Reached(rank, step)) RDMA_RETURN_IF_ERROR(WaitFor(rank, step, patience));
  }
  return OkStatus();
}

Status Progress::WaitFor(int rank, uint32_t step, const Patience& patience) {
  for (int i = 0; i < pauses_ && !polled_[rank]; ++i) {
    if (Reached(rank, step)) return OkStatus();
    Pause();
  }
  const Nanos start = Now();
  Nanos last_look = start;
  while (!Reached(rank, step)) {
    if (unwoken_) WakeOthers();
    const Nanos now = Now();
    if (now - start < spin_) {
      SpinFor(rank, step);
      continue;
    }
    RDMA_RETURN_IF_ERROR(CheckLost(step));
    if (now >= patience.deadline) {
      return Status(Code::kDeadlineExceeded,
                    "rank " + std::to_string(rank) + " did not take part before the timeout");
    }
    if (patience.interrupted != nullptr && now - last_look >= kCheckInterval) {
      if (patience.interrupted()) return Status(Code::kCancelled, "interrupted");
      last_look = now;
    }
    Sleep(rank, step);
  }
  return OkStatus();
}

void Progress::SpinFor(int rank, uint32_t step) const {
  if (polled_[rank]) helper_([&] { return Reached(rank, step); });
  if (Reached(rank, step)) return;
  sched_yield();
  for (int i = 0; i < 32 && i < pauses_ && !Reached(rank, step); ++i) Pause();
}

// A lost member may have completed the step before.
Status Progress::CheckLost(uint32_t step) const {
  for (int rank = 0; rank < static_cast<int>(boards_.size()); ++rank) {
    if (rank == rank_ || Reached(rank, step)) continue;
    const Status lost = lost_(rank);
    if (!lost.ok() && !Reached(rank, step)) return lost;
  }
  return OkStatus();
}

void Progress::Sleep(int rank, uint32_t step) const {
  const std::atomic<uint32_t>& word = boards_[rank]->progress;
  own_->sleeps_for.store(static_cast<uint32_t>(rank + 1), std::memory_order_seq_cst);
  const uint32_t seen = word.load(std::memory_order_seq_cst);
  if (static_cast<int32_t>(seen - step) < 0) {
    const timespec timeout = TimeOf(unwoken_ ? kRetry : kCheckInterval);
    Futex(word, FUTEX_WAIT, seen, &timeout);
  }
  own_->sleeps_for.store(0, std::memory_order_seq_cst);
}

void Progress::WakeAll() const {
  Wake();
  for (const Board* board : boards_) Futex(board->progress, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace rdma_transport::collectives
