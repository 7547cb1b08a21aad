// Threads for work that may block for as long as it likes: each piece starts at once, on a thread
// that has nothing to do or else on a new one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rdma_transport::rpc {

class ThreadPool {
 public:
  ~ThreadPool() { Shutdown(); }
  void Run(std::function<void()> work);
  // Waits for all work; afterwards Run() does nothing.
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
