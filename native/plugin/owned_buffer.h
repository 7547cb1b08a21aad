// Buffers of tensors over memory that the transport delivered.
#pragma once

#include <utility>

#include "fabric/fabric.h"
#include "protocol/tensor.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
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

// A part of a producer's tensor.
class MappedPart final : public tensorflow::TensorBuffer {
 public:
  explicit MappedPart(tensorflow::Tensor* part)
      : TensorBuffer(tensorflow::DMAHelper::base(part)),
        bytes_(part->TotalBytes()),
        root_(tsl::core::GetNewRef(tensorflow::DMAHelper::buffer(part)->root_buffer())) {}

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return root_.get(); }
  bool OwnsMemory() const override { return false; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    root_->FillAllocationDescription(proto);
  }

 private:
  const size_t bytes_;
  const tsl::core::RefCountPtr<TensorBuffer> root_;
};

// TensorFlow's slices claim to own their memory, even of a tensor that does not. Kernels, NumPy and
// others would write into a slice that has no other user. Makes `tensor` one that they do not write
// into, if it lies in a producer's memory.
inline void DisownIfMapped(tensorflow::Tensor* tensor) {
  using tensorflow::DMAHelper;
  if (!tensor->IsInitialized() || !fabric::IsMapped(DMAHelper::base(tensor))) return;
  if (!DMAHelper::buffer(tensor)->OwnsMemory()) return;
  tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> part(new MappedPart(tensor));
  *tensor = tensorflow::Tensor(tensor->dtype(), tensor->shape(), std::move(part));
}

}  // namespace rdma_transport
