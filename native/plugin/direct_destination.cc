#include "plugin/direct_destination.h"

#include <utility>

#include "plugin/accelerators.h"
#include "plugin/device_memory.h"
#include "plugin/status_conversion.h"
#include "plugin/wire_tensor.h"
#include "protocol/counters.h"
#include "protocol/process.h"
#include "tensorflow/core/common_runtime/dma_helper.h"

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
  WireTensor described;
  if (!WorthRegistering(delivery.bytes) ||
      !CheckWireTensor(delivery.dtype, delivery.dims, delivery.bytes, "", &described).ok()) {
    return false;
  }
  const tf::AllocationAttributes at_once(/*retry_on_failure=*/false,
                                         /*allocation_will_be_logged=*/false, nullptr);
  tensor_ =
      tf::Tensor(device_->GetAllocator(attributes_), described.dtype, described.shape, at_once);
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

void DirectDestination::Fill(const tf::Tensor& arrived,
                             std::function<void(const absl::Status&, const tf::Tensor&)> done) {
  if (!tf::DMAHelper::CanUseDMA(&arrived)) {
    return CopyObjectsToDevice(context_, device_, attributes_, arrived, std::move(done));
  }
  AllocateOnDevice(device_, attributes_, arrived.dtype(), arrived.shape(),
                   [self = shared_from_this(), arrived, done = std::move(done)](
                       const absl::Status& status, const tf::Tensor& tensor) {
                     if (!status.ok()) return done(status, tf::Tensor());
                     CopyToDevice(
                         self->context_, self->device_, arrived, tensor,
                         [tensor, done](const absl::Status& copied) { done(copied, tensor); });
                   });
}

}  // namespace rdma_transport
