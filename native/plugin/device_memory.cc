#include "plugin/device_memory.h"

#include <memory>
#include <utility>

#include "plugin/owned_buffer.h"
#include "plugin/profile.h"
#include "protocol/counters.h"
#include "tensorflow/core/common_runtime/copy_tensor.h"
#include "tensorflow/core/platform/env.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// What a copy needs until its end.
struct Copy {
  tf::Tensor from;
  tf::Tensor to;
  tsl::core::RefCountPtr<tf::DeviceContext> context;
  tf::StatusCallback done;
  const char* direction;
  ProfiledSpan span;

  void End(const absl::Status& status) {
    if (status.ok()) {
      GlobalCounters().device_copied_bytes.fetch_add(from.TotalBytes(), std::memory_order_relaxed);
    }
    span.EndCopy(direction, from.TotalBytes());
    done(status);
  }
};

// Returns the context, or the device's own if it is null, or null if there is none.
tf::DeviceContext* ContextOf(tf::DeviceContext* context, tf::Device* device) {
  return context != nullptr ? context
                            : device->tensorflow_accelerator_device_info()->default_context;
}

absl::Status NoContext(const tf::Device& device) {
  return absl::InternalError("device " + device.name() + " has no context");
}

// Calls `done` with an error, and returns null, if the device has no context to copy with.
std::shared_ptr<Copy> MakeCopy(tf::DeviceContext* context, tf::Device* device,
                               const tf::Tensor& from, const tf::Tensor& to,
                               tf::StatusCallback done, const char* direction) {
  context = ContextOf(context, device);
  if (context == nullptr) {
    done(NoContext(*device));
    return nullptr;
  }
  std::shared_ptr<Copy> copy(new Copy{from, to, tsl::core::GetNewRef(context), std::move(done),
                                      direction, ProfiledSpan()});
  copy->span.Begin();
  return copy;
}

}  // namespace

bool InDeviceMemory(const tf::Device& device, const tf::AllocatorAttributes& attributes) {
  return device.tensorflow_accelerator_device_info() != nullptr && !attributes.on_host();
}

std::string StagingSite(std::string_view edge) { return "copy of " + std::string(edge); }

void AllocateOnDevice(tf::Device* device, const tf::AllocatorAttributes& attributes,
                      tf::DataType dtype, const tf::TensorShape& shape,
                      std::function<void(const absl::Status&, const tf::Tensor&)> done) {
  tf::Allocator* allocator = device->GetAllocator(attributes);
  const tf::AllocationAttributes at_once(/*retry_on_failure=*/false,
                                         /*allocation_will_be_logged=*/false, nullptr);
  const tf::Tensor tensor(allocator, dtype, shape, at_once);
  if (tensor.IsInitialized()) return done(absl::OkStatus(), tensor);
  tf::Env::Default()->SchedClosure([device, allocator, dtype, shape, done = std::move(done)] {
    const tf::Tensor late(allocator, dtype, shape);
    if (late.IsInitialized()) return done(absl::OkStatus(), late);
    done(absl::ResourceExhaustedError("OOM: no memory for a received tensor of type " +
                                      tf::DataTypeString(dtype) + " and shape " +
                                      shape.DebugString() + " on " + device->name()),
         late);
  });
}

void CopyToHost(tf::DeviceContext* context, tf::Device* device, const tf::Tensor& from,
                const tf::Tensor& to, tf::StatusCallback done) {
  const auto copy = MakeCopy(context, device, from, to, std::move(done), "to host");
  if (copy == nullptr) return;
  copy->context->CopyDeviceTensorToCPU(&copy->from, "", device, &copy->to,
                                       [copy](const absl::Status& status) { copy->End(status); });
}

void CopyToDevice(tf::DeviceContext* context, tf::Device* device, const tf::Tensor& from,
                  const tf::Tensor& to, tf::StatusCallback done) {
  const auto copy = MakeCopy(context, device, from, to, std::move(done), "to device");
  if (copy == nullptr) return;
  copy->context->CopyCPUTensorToDevice(&copy->from, device, &copy->to,
                                       [copy](const absl::Status& status) { copy->End(status); });
}

void CopyToDevice(tf::DeviceContext* context, tf::Device* device, Delivery from,
                  const tf::Tensor& to, tf::StatusCallback done) {
  tf::core::RefCountPtr<tf::TensorBuffer> buffer(
      new OwnedBuffer(from.data, from.bytes, std::move(from.owner), from.exclusive));
  CopyToDevice(context, device, tf::Tensor(to.dtype(), to.shape(), std::move(buffer)), to,
               std::move(done));
}

void CopyObjectsToDevice(tf::DeviceContext* context, tf::Device* device,
                         const tf::AllocatorAttributes& attributes, const tf::Tensor& from,
                         std::function<void(const absl::Status&, const tf::Tensor&)> done) {
  struct Objects {
    tf::Tensor from;
    tf::Tensor to;
    tsl::core::RefCountPtr<tf::DeviceContext> context;
  };
  context = ContextOf(context, device);
  if (context == nullptr) return done(NoContext(*device), tf::Tensor());
  const auto copy =
      std::make_shared<Objects>(Objects{from, tf::Tensor(), tsl::core::GetNewRef(context)});
  tf::AllocatorAttributes on_host;
  on_host.set_on_host(true);
  tf::CopyTensor::ViaDMA(
      "", nullptr, context, device, device, on_host, attributes, &copy->from, &copy->to,
      /*dev_to_dev_stream_index=*/0,
      [copy, done = std::move(done)](const absl::Status& status) { done(status, copy->to); });
}

absl::Status AfterDevice(tf::DeviceContext* context, tf::Device* device,
                         std::function<void()> then) {
  context = ContextOf(context, device);
  if (context == nullptr || context->stream() == nullptr) {
    return absl::UnimplementedError("device " + device->name() + " has no stream");
  }
  return context->ThenExecute(device, context->stream(), std::move(then));
}

}  // namespace rdma_transport
