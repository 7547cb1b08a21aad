#include "fabric/host/slow_calls.h"

#include <system_error>
#include <utility>

#include "base/quiet_thread.h"

namespace rdma_transport::fabric::host {

void SlowCalls::Add(std::function<void()> call) {
  std::unique_lock<std::mutex> lock(mu_);
  if (!running_) {
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = QuietThread(name_, [this] { Loop(); });
    } catch (const std::system_error&) {
      lock.unlock();
      return call();
    }
    running_ = true;
  }
  waiting_.push_back(std::move(call));  // the thread waits for the lock
}

void SlowCalls::Loop() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!waiting_.empty()) {
    const std::vector<std::function<void()>> taken = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto& call : taken) call();
    lock.lock();
  }
  running_ = false;
}

void SlowCalls::Wait() {
  std::unique_lock<std::mutex> lock(mu_);
  std::thread last = std::move(thread_);
  lock.unlock();
  if (last.joinable()) last.join();
}

void SlowCalls::Abandon() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace rdma_transport::fabric::host
