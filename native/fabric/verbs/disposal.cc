#include "fabric/verbs/disposal.h"

#include <system_error>
#include <utility>

#include "base/quiet_thread.h"

namespace rdma_transport::fabric::verbs {

void Disposal::Add(std::function<void()> destroy) {
  std::unique_lock<std::mutex> lock(mu_);
  if (!running_) {
    if (thread_.joinable()) thread_.join();
    try {
      thread_ = QuietThread("rdma_disposal", [this] { Loop(); });
    } catch (const std::system_error&) {
      lock.unlock();
      return destroy();
    }
    running_ = true;
  }
  waiting_.push_back(std::move(destroy));  // the thread waits for the lock
}

void Disposal::Loop() {
  std::unique_lock<std::mutex> lock(mu_);
  while (!waiting_.empty()) {
    const std::vector<std::function<void()>> taken = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto& destroy : taken) destroy();
    lock.lock();
  }
  running_ = false;
}

void Disposal::Wait() {
  std::unique_lock<std::mutex> lock(mu_);
  std::thread last = std::move(thread_);
  lock.unlock();
  if (last.joinable()) last.join();
}

void Disposal::Abandon() {
  if (thread_.joinable()) thread_.detach();
}

}  // namespace rdma_transport::fabric::verbs
