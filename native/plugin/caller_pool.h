// An intra-op pool without threads: what a kernel divides among threads runs on the kernel's own.
#pragma once

#define EIGEN_USE_THREADS
#include <functional>

#include "unsupported/Eigen/CXX11/Tensor"

namespace rdma_transport {

// A kernel divides its work by the number of threads, and some results depend on that, such as the
// order of additions. So this pool pretends to have as many threads as TensorFlow's. That one, too,
// runs work on the caller when its queues are full. Thread-safe.
class CallerPool final : public Eigen::ThreadPoolInterface {
 public:
  explicit CallerPool(int threads) : threads_(threads) {}

  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return threads_; }
  int CurrentThreadId() const override { return -1; }  // as on any thread outside of a pool

 private:
  const int threads_;
};

}  // namespace rdma_transport
