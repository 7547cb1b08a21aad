// Threads for work that may block indefinitely. Work starts at once, on an idle thread or a new
// one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rdma_transport::rpc {

// Thread-safe.
class ThreadPool {
 public:
  ~ThreadPool() { Shutdown(); }
  void Run(std::function<void()> work);
  // Waits for all work. Afterwards Run() does nothing.
  void Shutdown();

 private:
  void Loop();

  std::mutex mu_;
  std::condition_variable changed_;
  bool stop_ = false;
  size_t idle_ = 0;
  std::deque<std::function<void()>> work_;
  std::vector<std::thread> threads_;
};

}  // namespace rdma_transport::rpc
