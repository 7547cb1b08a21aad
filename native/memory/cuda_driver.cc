#include "memory/cuda_driver.h"

#include <utility>

#include "fabric/host/dynamic_library.h"

namespace rdma_transport::memory {
namespace {

using fabric::host::FindFunction;

bool Resolve(void* library, CudaDriver* driver) {
  FindFunction(library, "cuMemGetHandleForAddressRange", &driver->get_handle);
  FindFunction(library, "cuFlushGPUDirectRDMAWrites", &driver->flush_writes);
  FindFunction(library, "cuDeviceGetPCIBusId", &driver->get_pci_address);
  return FindFunction(library, "cuInit", &driver->init) &&
         FindFunction(library, "cuGetErrorString", &driver->get_error_string) &&
         FindFunction(library, "cuDeviceGet", &driver->device_get) &&
         FindFunction(library, "cuDeviceGetAttribute", &driver->get_device_attribute) &&
         FindFunction(library, "cuDevicePrimaryCtxRetain", &driver->retain_context) &&
         FindFunction(library, "cuCtxPushCurrent_v2", &driver->push_context) &&
         FindFunction(library, "cuCtxPopCurrent_v2", &driver->pop_context) &&
         FindFunction(library, "cuMemHostRegister_v2", &driver->host_register) &&
         FindFunction(library, "cuMemHostUnregister", &driver->host_unregister) &&
         FindFunction(library, "cuPointerGetAttribute", &driver->get_pointer_attribute);
}

}  // namespace

std::string CudaDriver::Text(int result) const {
  const char* text = nullptr;
  if (get_error_string(result, &text) != 0 || text == nullptr) text = "an unknown error";
  return std::string(text) + " (CUDA error " + std::to_string(result) + ")";
}

Status CudaDriver::Open(const std::string& library, std::shared_ptr<const CudaDriver>* driver) {
  std::string reason;
  void* handle = fabric::host::OpenLibrary(library, &reason);
  auto opened = std::make_shared<CudaDriver>();
  if (handle == nullptr || !Resolve(handle, opened.get())) {
    return Status(Code::kNotFound, "the CUDA driver cannot be used: " +
                                       (handle == nullptr ? reason : library + " is too old"));
  }
  if (const int result = opened->init(0); result != 0) {
    return Status(Code::kUnavailable, "no GPU: " + opened->Text(result));
  }
  *driver = std::move(opened);
  return OkStatus();
}

}  // namespace rdma_transport::memory
