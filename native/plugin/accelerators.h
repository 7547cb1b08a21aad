// What accelerators need of the runtime: memory of the host that GPUs copy from and to by DMA, and
// registrations of their own memory for cards (GPUDirect RDMA).
#pragma once

#include <memory>
#include <vector>

#include "fabric/fabric.h"
#include "protocol/runtime.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Prepares the runtime for a server's devices. Returns an error if RDMA_TRANSPORT_GPU_DIRECT=on and
// cards cannot access memory of its accelerators.
absl::Status PrepareForAccelerators(const std::vector<std::unique_ptr<tensorflow::Device>>& devices,
                                    Runtime* runtime);

// Returns whether cards may access tensors of this size in memory of devices. Smaller ones get a
// slot, for which nothing has to be read.
bool WorthRegistering(uint64_t bytes);

// Returns the registration of a tensor in memory of a device, to be held while a card may access
// it. Null if it is too small to be worth it, or cannot be registered.
std::shared_ptr<fabric::Region> RegisterForCards(const tensorflow::Tensor& tensor);

}  // namespace rdma_transport
