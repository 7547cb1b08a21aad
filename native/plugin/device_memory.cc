#include "plugin/device_memory.h"

#include <memory>
#include <string>
#include <utility>

#include "protocol/counters.h"
#include "tensorflow/core/platform/env.h"
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// Both ends of a copy, and what it needs until its end.
struct Copy {
  tf::Tensor from;
  tf::Tensor to;
  tsl::core::RefCountPtr<tf::DeviceContext> context;
  tf::Device* device;
  CopyDone done;

  void End(const absl::Status& status) {
    if (status.ok()) {
      GlobalCounters().device_copied_bytes.fetch_add(from.TotalBytes(), std::memory_order_relaxed);
    }
    done(status, to);
  }
};

std::shared_ptr<Copy> MakeCopy(const tf::Rendezvous::Args& args, tf::Device* device,
                               const tf::Tensor& tensor, CopyDone done) {
  auto copy = std::make_shared<Copy>();
  copy->from = tensor;
  tf::DeviceContext* context = args.device_context;
  if (context == nullptr) {
    context = device->tensorflow_accelerator_device_info()->default_context;
  }
  if (context != nullptr) copy->context = tsl::core::GetNewRef(context);
  copy->device = device;
  copy->done = std::move(done);
  return copy;
}

absl::Status NoMemory(const tf::Tensor& tensor, const std::string& where) {
  return absl::ResourceExhaustedError("no memory for a tensor of " +
                                      std::to_string(tensor.TotalBytes()) + " bytes on " + where);
}

void BeginCopyToDevice(const std::shared_ptr<Copy>& copy) {
  copy->context->CopyCPUTensorToDevice(&copy->from, copy->device, &copy->to,
                                       [copy](const absl::Status& status) { copy->End(status); });
}

}  // namespace

bool InDeviceMemory(const tf::Device& device, const tf::AllocatorAttributes& attributes) {
  return device.tensorflow_accelerator_device_info() != nullptr && !attributes.on_host();
}

std::string StagingSite(std::string_view edge) { return "copy of " + std::string(edge); }

void CopyToHost(const tf::Rendezvous::Args& args, tf::Device* device, const tf::Tensor& tensor,
                tf::Allocator* allocator, const std::string& site, CopyDone done) {
  const std::shared_ptr<Copy> copy = MakeCopy(args, device, tensor, std::move(done));
  if (copy->context == nullptr) {
    return copy->End(absl::InternalError("device " + device->name() + " has no context"));
  }
  {
    const tsl::profiler::ScopedMemoryDebugAnnotation annotation(site);
    copy->to = tf::Tensor(allocator, tensor.dtype(), tensor.shape());
  }
  if (!copy->to.IsInitialized()) return copy->End(NoMemory(tensor, "the host"));
  copy->context->CopyDeviceTensorToCPU(&copy->from, site, device, &copy->to,
                                       [copy](const absl::Status& status) { copy->End(status); });
}

void CopyToDevice(const tf::Rendezvous::Args& args, tf::Device* device, const tf::Tensor& tensor,
                  CopyDone done) {
  const std::shared_ptr<Copy> copy = MakeCopy(args, device, tensor, std::move(done));
  if (copy->context == nullptr) {
    return copy->End(absl::InternalError("device " + device->name() + " has no context"));
  }
  tf::Allocator* allocator = device->GetAllocator(args.alloc_attrs);
  const tf::AllocationAttributes at_once(/*retry_on_failure=*/false,
                                         /*allocation_will_be_logged=*/false, nullptr);
  copy->to = tf::Tensor(allocator, tensor.dtype(), tensor.shape(), at_once);
  if (copy->to.IsInitialized()) return BeginCopyToDevice(copy);
  // The allocator waits for a while, which the polling thread must not.
  tf::Env::Default()->SchedClosure([copy, allocator] {
    copy->to = tf::Tensor(allocator, copy->from.dtype(), copy->from.shape());
    if (!copy->to.IsInitialized()) return copy->End(NoMemory(copy->from, copy->device->name()));
    BeginCopyToDevice(copy);
  });
}

}  // namespace rdma_transport
