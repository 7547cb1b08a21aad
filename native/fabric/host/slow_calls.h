// Calls of the kernel that can take long.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rdma_transport::fabric::host {

// Runs functions in order on a thread that exists while there are any, so that the thread that
// polls need not wait. Soft-RoCE destroys a queue pair only after packets that an interface had not
// sent when it went down, up to 50 s later. With RoCE, a queue pair is connected only after the
// peer's address is resolved, which takes a second if nobody answers. Thread-safe.
class SlowCalls {
 public:
  // `name` is that of the thread, at most 15 characters.
  explicit SlowCalls(const char* name) : name_(name) {}
  // Wait() or Abandon() must have been called after the last Add().
  ~SlowCalls() = default;
  SlowCalls(const SlowCalls&) = delete;
  SlowCalls& operator=(const SlowCalls&) = delete;

  // Runs `call`, here if no thread can be started.
  void Add(std::function<void()> call);
  // Waits until all have run.
  void Wait();
  // In a forked child, which has no such thread.
  void Abandon();

 private:
  void Loop();

  const char* const name_;
  std::mutex mu_;
  std::vector<std::function<void()>> waiting_;
  bool running_ = false;
  std::thread thread_;  // used by Add(), Wait() and Abandon(); has ended if `running_` is false
};

}  // namespace rdma_transport::fabric::host
