// Whether a kernel may run on the polling thread, and whether other threads may take part in it, by
// how long it took before.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace rdma_transport {

// While a kernel runs: before it, announces to the poller how long it is expected to take; after
// it, records how long it took. For an asynchronous kernel, this is the time in which it starts.
// Does nothing on threads that do not poll.
class TimedKernel {
 public:
  TimedKernel(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context);
  TimedKernel(const TimedKernel&) = delete;
  TimedKernel& operator=(const TimedKernel&) = delete;
  ~TimedKernel();

  // Returns whether the kernel that this thread runs is faster without other threads, or that is to
  // be found out.
  static bool OnCaller();

 private:
  const tensorflow::OpKernel* kernel_ = nullptr;  // null if its time is not recorded
  uint64_t bytes_ = 0;
  Nanos begin_ = 0;
  bool divided_ = true;
};

}  // namespace rdma_transport
