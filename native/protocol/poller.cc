#include "protocol/poller.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/spin.h"

namespace rdma_transport {
namespace {

// One thread leads. While it runs deferred work, a second one leads and a third one sleeps.
constexpr int kThreads = 3;
constexpr std::chrono::seconds kStopTimeout(2);
// A follower is woken repeatedly until the leader has handled the event, and the leader may need
// the processor that the follower runs on.
constexpr std::chrono::microseconds kNap(20);
// The longest time that deferred work runs here: about the time to wake another thread.
constexpr Nanos kShortWork = 50 * kMicrosecond;

}  // namespace

// Deferred work that a thread runs one item at a time, until one takes long.
struct Poller::Batch {
  Poller* poller;
  Pool* pool;
  std::vector<std::function<void()>> work;
  size_t next = 0;

  void HandOut() {
    while (next < work.size()) pool->Schedule(std::move(work[next++]));
  }
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

bool Poller::Defer(std::function<void()>* work) {
  if (deferred_ == nullptr) return false;
  deferred_->push_back(std::move(*work));
  return true;
}

// Requires leadership. Gives it up to run the work here if another thread could poll in the
// meantime. When something takes long, the remaining work goes to the pool. Returns false if there
// was no work.
bool Poller::RunDeferred(std::unique_lock<std::mutex>* leadership) {
  Batch batch = {this, pool_.load(), std::exchange(*deferred_, {})};
  deferred_ = nullptr;
  if (batch.work.empty()) return false;
  if (sleepers_.load() == 0) {
    batch.HandOut();
    return true;
  }
  leadership->unlock();
  batch_ = &batch;
  const Nanos begin = Now();
  while (batch.next < batch.work.size()) {
    const std::function<void()> here = std::move(batch.work[batch.next++]);
    batch.pool->RunHere(here);
    if (Now() - begin > kShortWork) batch.HandOut();
  }
  batch_ = nullptr;
  return true;
}

void Poller::LongWorkAhead() {
  if (batch_ == nullptr) return;
  Batch* batch = std::exchange(batch_, nullptr);
  batch->HandOut();
  batch->poller->HandOver();
}

void Poller::HandOver() {
  const std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
  if (!leadership.owns_lock()) return;  // another thread already polls
  if (!device_->ArmNotification() || (armed_.load() && dated_sleepers_.load() == 0))
    device_->Wake();
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

void Poller::SleepAsFollower() {
  const bool dated = armed_.load();
  sleepers_.fetch_add(1);
  if (dated) dated_sleepers_.fetch_add(1);
  device_->Sleep(dated ? std::max<Nanos>(next_tick_.load(), 1) : 0);
  if (dated) dated_sleepers_.fetch_sub(1);
  sleepers_.fetch_sub(1);
}

void Poller::Loop() {
  while (!stop_.load(std::memory_order_relaxed)) {
    SleepAsFollower();
    std::unique_lock<std::mutex> leadership(lead_mu_, std::try_to_lock);
    if (leadership.owns_lock()) {
      Lead(std::move(leadership));
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
  std::lock_guard<std::mutex> lock(running_mu_);
  --running_;
  loop_ended_.notify_all();
}

}  // namespace rdma_transport
