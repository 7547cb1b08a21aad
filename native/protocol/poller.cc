#include "protocol/poller.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/spin.h"

namespace rdma_transport {
namespace {

// One thread leads. While it runs deferred work, a second one leads and a third one sleeps.
constexpr int kThreads = 3;
constexpr std::chrono::seconds kStopTimeout(2);
// Device::Wake() wakes a follower repeatedly until the leader has polled, and the leader may need
// the processor that the follower runs on.
constexpr std::chrono::microseconds kNap(20);
// The longest time that deferred work runs here: about the time to wake another thread.
constexpr Nanos kShortWork = 50 * kMicrosecond;

}  // namespace

// Deferred work that a thread runs one item at a time, until one takes long.
class Poller::Batch {
 public:
  Batch(Poller* poller, std::vector<std::function<void()>> work)
      : poller_(poller), pool_(poller->pool_.load()), work_(std::move(work)) {
    std::lock_guard<std::mutex> lock(poller_->batches_mu_);
    poller_->batches_.push_back(this);
  }
  ~Batch() {
    std::lock_guard<std::mutex> lock(poller_->batches_mu_);
    auto& all = poller_->batches_;
    all.erase(std::find(all.begin(), all.end(), this));
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  Poller* poller() const { return poller_; }
  Nanos began() const { return began_; }
  Nanos age() const { return Now() - began_; }

  // Returns false if nothing is left.
  bool RunNext() {
    std::function<void()> here;
    {
      std::lock_guard<std::mutex> lock(poller_->batches_mu_);
      if (!HasRest()) return false;
      here = std::move(work_[next_++]);
    }
    pool_->RunHere(here);
    return true;
  }
  void Add(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(poller_->batches_mu_);
    work_.push_back(std::move(work));
  }
  // Returns whether anything is left. Requires batches_mu_.
  bool HasRest() const { return next_ < work_.size(); }
  // Takes what is left. Requires batches_mu_.
  std::vector<std::function<void()>> TakeRest() {
    std::vector<std::function<void()>> rest(
        std::make_move_iterator(work_.begin() + static_cast<ptrdiff_t>(next_)),
        std::make_move_iterator(work_.end()));
    next_ = work_.size();
    return rest;
  }
  // Leaves what is left to the pool.
  void HandOut() {
    std::unique_lock<std::mutex> lock(poller_->batches_mu_);
    auto rest = TakeRest();
    lock.unlock();
    for (auto& work : rest) pool_->Schedule(std::move(work));
  }

 private:
  Poller* const poller_;
  Pool* const pool_;
  const Nanos began_ = Now();
  std::vector<std::function<void()>> work_;
  size_t next_ = 0;
};

thread_local Poller::Batch* Poller::batch_ = nullptr;
thread_local std::vector<std::function<void()>>* Poller::deferred_ = nullptr;

Poller::Poller(fabric::Device* device, const Settings& settings, TickFunction tick)
    : device_(device),
      spin_(settings.spin),
      tick_interval_(std::clamp(settings.peer_timeout / 16, 10 * kMillisecond, 500 * kMillisecond)),
      tick_(std::move(tick)),
      running_(kThreads) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Loop(); });
    pthread_setname_np(threads_.back().native_handle(), "rdma_poll");
  }
}

void Poller::Stop() {
  if (threads_.empty() || stop_.exchange(true)) return;
  const auto deadline = std::chrono::steady_clock::now() + kStopTimeout;
  std::unique_lock<std::mutex> lock(running_mu_);
  while (running_ > 0 && std::chrono::steady_clock::now() < deadline) {
    device_->Wake();
    loop_ended_.wait_for(lock, std::chrono::milliseconds(10), [this] { return running_ == 0; });
  }
  const bool ended = running_ == 0;
  lock.unlock();
  for (std::thread& thread : threads_) {
    if (ended) {
      thread.join();
    } else {
      thread.detach();
    }
  }
  threads_.clear();
}

void Poller::ArmTimer() {
  if (!armed_.load(std::memory_order_relaxed) && !armed_.exchange(true)) device_->Wake();
}

void Poller::Tick(Nanos now) {
  const bool suspended = last_tick_ != 0 && now - last_tick_ > 4 * tick_interval_ + kSecond;
  armed_.store(false);
  const bool busy = tick_(now, suspended);
  if (busy) armed_.store(true);
  last_tick_ = busy ? now : 0;
  next_tick_ = now + tick_interval_;
}

void Poller::Schedule(std::function<void()> work) {
  Pool* const pool = pool_.load();
  if (pool == nullptr) return work();
  pool->Schedule(std::move(work));
}

bool Poller::Defer(std::function<void()>* work) {
  if (deferred_ == nullptr) return false;
  deferred_->push_back(std::move(*work));
  return true;
}

bool Poller::DeferMore(std::function<void()>* work) {
  if (batch_ == nullptr) return false;
  batch_->Add(std::move(*work));
  return true;
}

// Requires leadership. Gives it up to run the work here if another thread could poll in the
// meantime. When something takes long, the remaining work goes to the pool. Returns false if there
// was no work.
bool Poller::RunDeferred(std::unique_lock<std::mutex>* leadership) {
  if (deferred_->empty()) {
    deferred_ = nullptr;
    return false;
  }
  Batch batch(this, std::exchange(*deferred_, {}));
  deferred_ = nullptr;
  if (sleepers_.load() == 0) {
    batch.HandOut();
    return true;
  }
  last_batch_.store(batch.began());
  if (dated_sleepers_.load() == 0) device_->Wake();  // one must watch
  leadership->unlock();
  batch_ = &batch;
  while (batch.RunNext()) {
    if (batch.age() > kShortWork) batch.HandOut();
  }
  batch_ = nullptr;
  return true;
}

void Poller::LongWorkAhead() {
  if (batch_ == nullptr) return;
  Batch* batch = std::exchange(batch_, nullptr);
  batch->HandOut();
  batch->poller()->HandOver();
}

void Poller::WorkAhead(Nanos expected) {
  if (batch_ == nullptr) return;
  if (batch_->age() + expected > kShortWork) LongWorkAhead();
}

void Poller::HandOver() {
  bool wake = false;
  {
    const std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
    if (!leadership.owns_lock()) return;  // another thread already polls
    wake = !device_->ArmNotification() || (armed_.load() && dated_sleepers_.load() == 0);
  }
  if (wake || missed_.load()) device_->Wake();
}

// A piece of work may wait, unannounced, for what a later piece of its batch brings about.
void Poller::HandOutStuckWork() {
  std::vector<std::function<void()>> stuck;
  {
    std::lock_guard<std::mutex> lock(batches_mu_);
    for (Batch* batch : batches_) {
      if (batch->age() < tick_interval_) continue;
      for (auto& work : batch->TakeRest()) stuck.push_back(std::move(work));
    }
  }
  for (auto& work : stuck) pool_.load()->Schedule(std::move(work));
}

// Returns whether work waits behind a piece that runs.
bool Poller::BatchesWait() {
  std::lock_guard<std::mutex> lock(batches_mu_);
  return std::any_of(batches_.begin(), batches_.end(),
                     [](const Batch* batch) { return batch->HasRest(); });
}

void Poller::Lead(std::unique_lock<std::mutex> leadership) {
  std::vector<std::function<void()>> deferred;
  Nanos last_work = Now();
  while (!stop_.load(std::memory_order_relaxed)) {
    deferred_ = pool_.load(std::memory_order_relaxed) == nullptr ? nullptr : &deferred;
    const int handled = device_->Poll();
    const bool ran = deferred_ != nullptr && RunDeferred(&leadership);
    deferred_ = nullptr;
    if (ran && !leadership.owns_lock() && !leadership.try_lock()) return;
    const Nanos now = Now();
    // Done under any load: a peer that never pauses must not suspend the timeouts of others.
    if (armed_.load(std::memory_order_relaxed) &&
        now >= next_tick_.load(std::memory_order_relaxed)) {
      Tick(now);
    }
    if (handled > 0) {
      last_work = now;
      continue;
    }
    if (now - last_work < spin_) {
      SpinBriefly();
      continue;
    }
    if (device_->ArmNotification()) return;
  }
}

// While deferred work runs now and then, looks whether a thread is stuck in it.
void Poller::SleepAsFollower() {
  const Nanos now = Now();
  const bool armed = armed_.load();
  const bool watching = now - last_batch_.load() < tick_interval_ || BatchesWait();
  const bool dated = armed || watching;
  Nanos deadline = watching ? now + tick_interval_ : 0;
  if (armed) deadline = std::max<Nanos>(next_tick_.load(), 1);
  sleepers_.fetch_add(1);
  if (dated) dated_sleepers_.fetch_add(1);
  device_->Sleep(deadline);
  if (dated) dated_sleepers_.fetch_sub(1);
  sleepers_.fetch_sub(1);
}

// Returns false if another thread leads; that one has to see `missed_`.
bool Poller::TryToLead() {
  missed_.store(true);
  std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
  if (!leadership.owns_lock()) return false;
  missed_.store(false);
  Lead(std::move(leadership));
  return true;
}

void Poller::Loop() {
  while (!stop_.load(std::memory_order_relaxed)) {
    SleepAsFollower();
    HandOutStuckWork();
    bool led = TryToLead();
    while (led && missed_.load() && !stop_.load(std::memory_order_relaxed)) led = TryToLead();
    if (!led) std::this_thread::sleep_for(kNap);
  }
  std::lock_guard<std::mutex> lock(running_mu_);
  --running_;
  loop_ended_.notify_all();
}

}  // namespace rdma_transport
