// Whether a kernel may run on the polling thread, by how long it took before.
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

 private:
  const tensorflow::OpKernel* kernel_ = nullptr;  // null if its time is not recorded
  uint64_t bytes_ = 0;
  Nanos begin_ = 0;
};

}  // namespace rdma_transport
