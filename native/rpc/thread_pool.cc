#include "rpc/thread_pool.h"

#include <pthread.h>

#include <system_error>
#include <utility>

#include "base/log.h"

namespace rdma_transport::rpc {

void ThreadPool::Run(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mu_);
  if (stop_) return;
  work_.push_back(std::move(work));
  if (work_.size() <= idle_) return changed_.notify_one();
  try {
    threads_.emplace_back([this] { Loop(); });
    pthread_setname_np(threads_.back().native_handle(), "rdma_answer");
  } catch (const std::system_error& error) {
    // The work waits for an existing thread.
    Log(LogLevel::kWarning,
        std::string("no thread for a call of the data service: ") + error.what());
  }
}

void ThreadPool::Loop() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    ++idle_;
    changed_.wait(lock, [this] { return stop_ || !work_.empty(); });
    --idle_;
    if (work_.empty()) return;
    {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
  }
}

void ThreadPool::Shutdown() {
  std::vector<std::thread> threads;
  {
    std::lock_guard<std::mutex> lock(mu_);
    stop_ = true;
    threads.swap(threads_);
    changed_.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace rdma_transport::rpc
