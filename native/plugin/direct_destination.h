// Memory of an accelerator for a tensor that arrives: a card reads it there, or the device copies
// it there from the host's memory.
#pragma once

#include <functional>
#include <memory>

#include "fabric/fabric.h"
#include "protocol/tensor.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Of one receive. Not thread-safe: Prepare() comes before the delivery.
class DirectDestination : public std::enable_shared_from_this<DirectDestination> {
 public:
  // `device` and `context`, which may be null, must live until the delivery.
  DirectDestination(tensorflow::Device* device, tensorflow::DeviceContext* context,
                    const tensorflow::AllocatorAttributes& attributes)
      : device_(device), context_(context), attributes_(attributes) {}

  // See PendingRecv::PrepareDestination(). Passes memory that the device does not use any more, or
  // null if a card cannot write there.
  void Prepare(const Delivery& delivery, bool copied, std::function<void(char*)> read);

  // Returns whether a card could have read here a tensor that came to the host's memory.
  bool WouldHold(const Delivery& delivery);
  // Returns whether this is where a tensor was read.
  bool Holds(const void* data) const;
  // Returns the tensor. What the device computes from now on sees what the card wrote.
  absl::Status Take(tensorflow::Tensor* tensor);

  // Copies a tensor of the host's memory to the device, and calls `done` once, on any thread.
  void Fill(const tensorflow::Tensor& arrived,
            std::function<void(const absl::Status&, const tensorflow::Tensor&)> done);

 private:
  bool Allocate(const Delivery& delivery);
  void Free();

  tensorflow::Device* const device_;
  tensorflow::DeviceContext* const context_;
  const tensorflow::AllocatorAttributes attributes_;
  tensorflow::Tensor tensor_;
  std::shared_ptr<fabric::Region> region_;  // null: the tensor is read elsewhere
};

}  // namespace rdma_transport
