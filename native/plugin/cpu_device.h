// The CPU device of an rdma server. It allocates from the arena and keeps kernels from writing into
// memory that belongs to a peer.
#pragma once

#include <memory>
#include <vector>

#include "protocol/poller.h"
#include "protocol/runtime.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"

namespace rdma_transport {

// Thread-safe, as every device.
class CpuDevice final : public tensorflow::ThreadPoolDevice {
 public:
  using ThreadPoolDevice::ThreadPoolDevice;

  void Compute(tensorflow::OpKernel* kernel, tensorflow::OpKernelContext* context) override;
  void ComputeAsync(tensorflow::AsyncOpKernel* kernel, tensorflow::OpKernelContext* context,
                    tensorflow::AsyncOpKernel::DoneCallback done) override;
};

// Creates TensorFlow's devices for a task, with the CPU devices replaced.
absl::Status MakeDevices(const tensorflow::SessionOptions& options, const std::string& task,
                         Runtime* runtime,
                         std::vector<std::unique_ptr<tensorflow::Device>>* devices);

}  // namespace rdma_transport
