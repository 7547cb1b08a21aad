// Tensors in the memory of accelerators, which the processor cannot access: TensorFlow's device
// contexts copy them from and to the host, on the device's own streams. No thread waits for one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "protocol/tensor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Returns whether tensors with these attributes lie in the device's own memory.
bool InDeviceMemory(const tensorflow::Device& device,
                    const tensorflow::AllocatorAttributes& attributes);

// Returns the allocation site of the host's copies for an edge, see memory::SlotPools. `edge` is
// its key without frame-and-iteration suffix.
std::string StagingSite(std::string_view edge);

// Allocates a tensor in the memory of the device that `attributes` choose, which may be the host's.
// If there is no memory, waits for some, as TensorFlow does, on another thread. Calls `done` once,
// on any thread, with the tensor or with ResourceExhausted.
void AllocateOnDevice(tensorflow::Device* device, const tensorflow::AllocatorAttributes& attributes,
                      tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                      std::function<void(const absl::Status&, const tensorflow::Tensor&)> done);

// These copy a tensor into one of the same type and shape, and call `done` once, on any thread.
// `context` is that of the _Send or _Recv, or null for the device's own. The tensors are held until
// then; the device must outlive it. The copy begins when the device has computed what is to be
// copied, or does not use the destination any more.
void CopyToHost(tensorflow::DeviceContext* context, tensorflow::Device* device,
                const tensorflow::Tensor& from, const tensorflow::Tensor& to,
                tensorflow::StatusCallback done);
void CopyToDevice(tensorflow::DeviceContext* context, tensorflow::Device* device,
                  const tensorflow::Tensor& from, const tensorflow::Tensor& to,
                  tensorflow::StatusCallback done);

// The same for what a peer delivered, which has as many bytes as `to`.
void CopyToDevice(tensorflow::DeviceContext* context, tensorflow::Device* device, Delivery from,
                  const tensorflow::Tensor& to, tensorflow::StatusCallback done);

// The same for a tensor without plain bytes, such as variants, into a new tensor: copies what its
// elements consist of.
void CopyObjectsToDevice(tensorflow::DeviceContext* context, tensorflow::Device* device,
                         const tensorflow::AllocatorAttributes& attributes,
                         const tensorflow::Tensor& from,
                         std::function<void(const absl::Status&, const tensorflow::Tensor&)> done);

// Calls `then`, on another thread, when the device has computed all that was enqueued on the
// context's stream. Returns an error if it cannot; `then` is not called then.
absl::Status AfterDevice(tensorflow::DeviceContext* context, tensorflow::Device* device,
                         std::function<void()> then);

}  // namespace rdma_transport
