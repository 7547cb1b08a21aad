// A tensor over memory that the transport delivered.
#pragma once

#include <utility>

#include "protocol/tensor.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Drops the owner when the last tensor over it is destroyed, on any thread.
class OwnedBuffer final : public tensorflow::TensorBuffer {
 public:
  OwnedBuffer(const char* data, size_t bytes, OwnerRef owner, bool exclusive)
      : TensorBuffer(const_cast<char*>(data)),
        bytes_(bytes),
        exclusive_(exclusive),
        owner_(std::move(owner)) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  // Without this TensorFlow would write results in place into a producer's tensor.
  bool OwnsMemory() const override { return exclusive_; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(bytes_));
    proto->set_allocator_name("rdma_peer");
  }

 private:
  const size_t bytes_;
  const bool exclusive_;
  OwnerRef owner_;
};

}  // namespace rdma_transport
