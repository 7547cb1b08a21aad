#include "memory/cuda_pinning.h"

#include <string>

namespace rdma_transport::memory {
namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: for all GPUs of the process

}  // namespace

Status CudaPinning::Open(std::shared_ptr<const CudaDriver> driver,
                         std::unique_ptr<CudaPinning>* pinning) {
  int device = 0;
  void* context = nullptr;
  int result = driver->device_get(&device, 0);
  if (result == 0) result = driver->retain_context(&context, device);
  if (result != 0) return Status(Code::kUnavailable, "no GPU: " + driver->Text(result));
  pinning->reset(new CudaPinning(std::move(driver), context));
  return OkStatus();
}

Status CudaPinning::Pin(fabric::Region* region) const {
  char* const memory = region->address();
  const size_t length = region->length();
  const int result = driver_->InContext(
      context_, [&] { return driver_->host_register(memory, length, kPortable); });
  if (result != 0) {
    return Status(Code::kResourceExhausted,
                  "cannot pin " + std::to_string(length) +
                      " bytes for the GPU: " + driver_->Text(result) +
                      "; copies to and from it are slower. Raise the limit of locked memory "
                      "(ulimit -l unlimited)");
  }
  // An error means that the driver has shut down, and has unpinned everything.
  region->BeforeEnd([driver = driver_, context = context_, memory](uint64_t) {
    driver->InContext(context, [&] { return driver->host_unregister(memory); });
  });
  return OkStatus();
}

}  // namespace rdma_transport::memory
