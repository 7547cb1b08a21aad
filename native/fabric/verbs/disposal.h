// Destroys what a card may keep for long.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rdma_transport::fabric::verbs {

// Runs functions in order on a thread that exists while there are any. A call of the kernel that
// destroys a queue pair can take long: Soft-RoCE waits, up to 50 s, for packets that an interface
// had not sent when it went down. The thread that polls must not wait with it. Thread-safe.
class Disposal {
 public:
  Disposal() = default;
  // Wait() or Abandon() must have been called after the last Add().
  ~Disposal() = default;
  Disposal(const Disposal&) = delete;
  Disposal& operator=(const Disposal&) = delete;

  // Runs `destroy`, here if no thread can be started.
  void Add(std::function<void()> destroy);
  // Waits until all have run.
  void Wait();
  // In a forked child, which has no such thread.
  void Abandon();

 private:
  void Loop();

  std::mutex mu_;
  std::vector<std::function<void()>> waiting_;
  bool running_ = false;
  std::thread thread_;  // used by Add(), Wait() and Abandon(); has ended if `running_` is false
};

}  // namespace rdma_transport::fabric::verbs
