// Functions of the CUDA driver API. The driver's library is opened at run time. Not tested on a
// GPU, only with a pretend library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace rdma_transport::memory {

// With the driver's types: results and devices are int, contexts pointers, addresses of memory of
// GPUs integers. A result of 0 is success.
struct CudaDriver {
  // Opens the driver `library`. Returns NotFound if there is none, Unavailable, with the driver's
  // reason, if it has no GPU. The library is never closed.
  static Status Open(const std::string& library, std::shared_ptr<const CudaDriver>* driver);

  // Describes a result other than 0.
  std::string Text(int result) const;

  // Calls the driver in a GPU's context.
  template <typename Function>
  int InContext(void* context, Function function) const {
    if (const int result = push_context(context); result != 0) return result;
    const int result = function();
    void* popped = nullptr;
    pop_context(&popped);
    return result;
  }

  int (*init)(unsigned flags);
  int (*get_error_string)(int result, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*get_device_attribute)(int* value, int attribute, int device);
  int (*retain_context)(void** context, int device);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  int (*host_register)(void* memory, size_t bytes, unsigned flags);
  int (*host_unregister)(void* memory);
  int (*get_pointer_attribute)(void* value, int attribute, uint64_t address);

  // Null in older libraries.
  int (*get_handle)(void* handle, uint64_t address, size_t bytes, int type,
                    unsigned long long flags);
  int (*flush_writes)(int target, int scope);
  int (*get_pci_address)(char* text, int size, int device);
};

}  // namespace rdma_transport::memory
