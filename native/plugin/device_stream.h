// Streams of devices, used without TensorFlow's device contexts.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"
#include "xla/stream_executor/stream.h"

namespace rdma_transport {

using Stream = stream_executor::Stream;

// An address in the memory of a device. The name of this class depends on TensorFlow's version.
template <typename Address>
Address CopyDestination(absl::Status (Stream::*)(Address*, const void*, uint64_t));
using DeviceAddress = decltype(CopyDestination(&Stream::Memcpy));

// Returns the stream on which the kernels of `device` run in order. Null if there is none, or if
// tensors do not hold addresses of the device's memory, as on XLA's own devices.
inline Stream* ComputeStream(const tensorflow::Device& device, tensorflow::DeviceContext* context) {
  const bool plain = context->IsPluggableDevice() || device.device_type() == tensorflow::DEVICE_GPU;
  return plain ? context->stream() : nullptr;
}

// These enqueue a copy. Both tensors must live until the device has made it.
inline absl::Status EnqueueCopyToDevice(Stream* stream, const tensorflow::Tensor& from,
                                        tensorflow::Tensor to) {
  DeviceAddress address(tensorflow::DMAHelper::base(&to), to.TotalBytes());
  return stream->Memcpy(&address, tensorflow::DMAHelper::base(&from), from.TotalBytes());
}
inline absl::Status EnqueueCopyToHost(Stream* stream, tensorflow::Tensor from,
                                      tensorflow::Tensor to) {
  const DeviceAddress address(tensorflow::DMAHelper::base(&from), from.TotalBytes());
  return stream->Memcpy(tensorflow::DMAHelper::base(&to), address, from.TotalBytes());
}

// Returns the error of a stream in error, as far as the device tells it.
inline absl::Status ErrorOfStream(Stream* stream) {
  const absl::Status status = stream->RefreshStatus();
  return absl::IsUnimplemented(status) ? absl::OkStatus() : status;
}

}  // namespace rdma_transport
