#include "memory/cuda_pinning.h"

#include <utility>

#include "fabric/host/dynamic_library.h"

namespace rdma_transport::memory {
namespace {

constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: for all GPUs of the process

}  // namespace

// Functions of the CUDA driver API, with its types: results and devices are int, contexts pointers.
struct CudaDriver {
  int (*init)(unsigned flags);
  int (*get_error_string)(int result, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*retain_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*host_register)(void* memory, size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  void* context = nullptr;  // the GPU's primary one, which TensorFlow uses, too

  bool Resolve(void* library) {
    using fabric::host::FindFunction;
    return FindFunction(library, "cuInit", &init) &&
           FindFunction(library, "cuGetErrorString", &get_error_string) &&
           FindFunction(library, "cuDeviceGet", &device_get) &&
           FindFunction(library, "cuDevicePrimaryCtxRetain", &retain_context) &&
           FindFunction(library, "cuCtxPushCurrent_v2", &push_context) &&
           FindFunction(library, "cuCtxPopCurrent_v2", &pop_context) &&
           FindFunction(library, "cuMemHostRegister_v2", &host_register) &&
           FindFunction(library, "cuMemHostUnregister", &host_unregister);
  }

  std::string Text(int result) const {
    const char* text = nullptr;
    if (get_error_string(result, &text) != 0 || text == nullptr) text = "an unknown error";
    return std::string(text) + " (CUDA error " + std::to_string(result) + ")";
  }

  // Calls the driver in the GPU's context.
  template <typename Function>
  int InContext(Function function) const {
    if (const int result = push_context(context); result != 0) return result;
    const int result = function();
    void* popped = nullptr;
    pop_context(&popped);
    return result;
  }
};

CudaPinning::CudaPinning(std::unique_ptr<CudaDriver> driver) : driver_(std::move(driver)) {}
CudaPinning::~CudaPinning() = default;

Status CudaPinning::Open(const std::string& library, std::unique_ptr<CudaPinning>* pinning) {
  std::string reason;
  void* handle = fabric::host::OpenLibrary(library, &reason);
  auto driver = std::make_unique<CudaDriver>();
  if (handle == nullptr || !driver->Resolve(handle)) {
    return Status(Code::kNotFound, "the CUDA driver cannot be used: " +
                                       (handle == nullptr ? reason : library + " is too old"));
  }
  int device = 0;
  int result = driver->init(0);
  if (result == 0) result = driver->device_get(&device, 0);
  if (result == 0) result = driver->retain_context(&driver->context, device);
  if (result != 0) return Status(Code::kUnavailable, "no GPU: " + driver->Text(result));
  pinning->reset(new CudaPinning(std::move(driver)));
  return OkStatus();
}

Status CudaPinning::Pin(fabric::Region* region) const {
  char* const memory = region->address();
  const size_t length = region->length();
  const CudaDriver* driver = driver_.get();
  const int result =
      driver->InContext([&] { return driver->host_register(memory, length, kPortable); });
  if (result != 0) {
    return Status(Code::kResourceExhausted,
                  "cannot pin " + std::to_string(length) +
                      " bytes for the GPU: " + driver->Text(result) +
                      "; copies to and from it are slower. Raise the limit of locked memory "
                      "(ulimit -l unlimited)");
  }
  // An error means that the driver has shut down, and has unpinned everything.
  region->BeforeEnd([driver, memory](uint64_t) {
    driver->InContext([&] { return driver->host_unregister(memory); });
  });
  return OkStatus();
}

}  // namespace rdma_transport::memory
