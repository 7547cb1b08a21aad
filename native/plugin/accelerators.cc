#include "plugin/accelerators.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "memory/cuda_driver.h"
#include "memory/cuda_exporter.h"
#include "memory/cuda_pinning.h"
#include "plugin/status_conversion.h"
#include "protocol/process.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

using Devices = std::vector<std::unique_ptr<tf::Device>>;
using CudaDriver = std::shared_ptr<const memory::CudaDriver>;

constexpr uint64_t kMinDirect = uint64_t{64} << 10;

Status OpenCuda(const Runtime& runtime, CudaDriver* driver) {
  return memory::CudaDriver::Open(runtime.settings().cuda_library, driver);
}

// Makes the arenas' memory fit for DMA of GPUs.
void PinForGpus(Runtime* runtime) {
  // Tensors, and so the arenas' memory, may outlive every server.
  static const auto* pinning = [runtime] {
    CudaDriver driver;
    std::unique_ptr<memory::CudaPinning> opened;
    Status status = OpenCuda(*runtime, &driver);
    if (status.ok()) status = memory::CudaPinning::Open(driver, &opened);
    if (!status.ok()) {
      Log(LogLevel::kWarning,
          "memory for tensors of GPUs is not pinned, so copies to and from it are slower: " +
              status.message());
    }
    return opened.release();
  }();
  if (pinning == nullptr) return;
  for (memory::Arena* arena : {runtime->arena(), runtime->receive_arena()}) {
    if (arena == nullptr) continue;
    arena->SetPrepare([](fabric::Region* slab) { return pinning->Pin(slab); });
  }
}

Status OpenDirect(Runtime* runtime) {
  if (runtime->direct() != nullptr) return OkStatus();
  if (runtime->device() == nullptr || !runtime->device()->Imports()) {
    return Status(Code::kUnimplemented, "no fabric with an RDMA card");
  }
  if (runtime->settings().checksum) {
    return Status(Code::kFailedPrecondition, "RDMA_TRANSPORT_CHECKSUM=on reads each tensor");
  }
  CudaDriver driver;
  RDMA_RETURN_IF_ERROR(OpenCuda(*runtime, &driver));
  runtime->OpenDirect(std::make_unique<memory::CudaExporter>(driver));
  return OkStatus();
}

}  // namespace

absl::Status PrepareForAccelerators(const Devices& devices, Runtime* runtime) {
  bool gpus = false;
  bool any = false;
  for (const auto& device : devices) {
    gpus |= device->device_type() == tf::DEVICE_GPU;
    any |= device->tensorflow_accelerator_device_info() != nullptr;
  }
  if (gpus) PinForGpus(runtime);
  const GpuDirect mode = runtime->settings().gpu_direct;
  if (!any || mode == GpuDirect::kOff) return absl::OkStatus();
  const Status opened = OpenDirect(runtime);
  if (opened.ok()) return absl::OkStatus();
  const std::string sentence = "cards do not access memory of accelerators: " + opened.message();
  if (mode == GpuDirect::kOn) {
    return absl::FailedPreconditionError("RDMA_TRANSPORT_GPU_DIRECT=on, but " + sentence);
  }
  Log(LogLevel::kInfo, sentence);
  return absl::OkStatus();
}

bool WorthRegistering(uint64_t bytes) {
  return bytes >= kMinDirect && ProcessRuntimeIfMade()->direct() != nullptr;
}

std::shared_ptr<fabric::Region> RegisterForCards(const tf::Tensor& tensor) {
  const uint64_t bytes = tensor.TotalBytes();
  if (!WorthRegistering(bytes)) return nullptr;
  return ProcessRuntimeIfMade()->direct()->Register(tf::DMAHelper::base(&tensor), bytes);
}

}  // namespace rdma_transport
