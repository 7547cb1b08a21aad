// Tensors in the memory of accelerators, which the processor cannot access: TensorFlow's device
// contexts copy them from and to the host, on the device's own streams. No thread waits for one.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/rendezvous.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Returns whether tensors with these attributes lie in the device's own memory.
bool InDeviceMemory(const tensorflow::Device& device,
                    const tensorflow::AllocatorAttributes& attributes);

// Returns the allocation site of the host's copies for an edge, see memory::SlotPools. `edge` is
// its key without frame-and-iteration suffix.
std::string StagingSite(std::string_view edge);

// Called once, on any thread, with the copy, or with an error.
using CopyDone = std::function<void(const absl::Status& status, const tensorflow::Tensor& copy)>;

// Copies `tensor`, once the device has computed it, into memory allocated at `site`. `device` and
// its context must outlive the call of `done`.
void CopyToHost(const tensorflow::Rendezvous::Args& args, tensorflow::Device* device,
                const tensorflow::Tensor& tensor, tensorflow::Allocator* allocator,
                const std::string& site, CopyDone done);
// Copies `tensor` into memory of the device, and holds it until the device has read it. If there is
// no memory, the copy waits for some, as TensorFlow's own do, and then fails.
void CopyToDevice(const tensorflow::Rendezvous::Args& args, tensorflow::Device* device,
                  const tensorflow::Tensor& tensor, CopyDone done);

}  // namespace rdma_transport
