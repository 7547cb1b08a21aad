#include "plugin/direct_destination.h"

#include <utility>

#include "plugin/accelerators.h"
#include "plugin/device_memory.h"
#include "plugin/status_conversion.h"
#include "protocol/counters.h"
#include "protocol/process.h"
#include "protocol/tensor_bytes.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {

namespace tf = tensorflow;

void DirectDestination::Prepare(const Delivery& delivery, bool copied,
                                std::function<void(char*)> read) {
  if (copied || delivery.checked || !Allocate(delivery)) return read(nullptr);
  auto* data = static_cast<char*>(tf::DMAHelper::base(&tensor_));
  // The allocator counts on the stream's order: what used this memory before may not have run yet.
  const absl::Status enqueued =
      AfterDevice(context_, device_, [self = shared_from_this(), read, data] { read(data); });
  if (enqueued.ok()) return;
  Free();
  read(nullptr);
}

bool DirectDestination::WouldHold(const Delivery& delivery) {
  const bool holds = !delivery.checked && Allocate(delivery);
  Free();
  return holds;
}

void DirectDestination::Free() {
  region_.reset();
  tensor_ = tf::Tensor();
}

// Does not wait for memory: a tensor for which there is none is read into the host's first.
bool DirectDestination::Allocate(const Delivery& delivery) {
  const auto dtype = static_cast<tf::DataType>(delivery.dtype);
  tf::TensorShape shape;
  if (!tf::TensorShape::BuildTensorShape(delivery.dims, &shape).ok() ||
      !tf::DataType_IsValid(static_cast<int>(dtype)) || !tf::DataTypeCanUseMemcpy(dtype) ||
      !HasBytes(delivery.dims, tf::DataTypeSize(dtype), delivery.bytes) ||
      !WorthRegistering(delivery.bytes)) {
    return false;
  }
  const tf::AllocationAttributes at_once(/*retry_on_failure=*/false,
                                         /*allocation_will_be_logged=*/false, nullptr);
  tensor_ = tf::Tensor(device_->GetAllocator(attributes_), dtype, shape, at_once);
  if (tensor_.IsInitialized()) region_ = RegisterForCards(tensor_);
  if (region_ == nullptr) tensor_ = tf::Tensor();
  return region_ != nullptr;
}

bool DirectDestination::Holds(const void* data) const {
  return region_ != nullptr && data == tf::DMAHelper::base(&tensor_);
}

absl::Status DirectDestination::Take(tf::Tensor* tensor) {
  const Status flushed =
      ProcessRuntimeIfMade()->direct()->FlushWrites(tf::DMAHelper::base(&tensor_));
  if (!flushed.ok()) return ToTensorFlow(flushed);
  GlobalCounters().device_direct_bytes.fetch_add(tensor_.TotalBytes(), std::memory_order_relaxed);
  *tensor = tensor_;
  return absl::OkStatus();
}

}  // namespace rdma_transport
