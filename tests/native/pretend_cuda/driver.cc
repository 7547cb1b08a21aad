#include <cstdint>
#include <cstdio>
#include <map>
#include <mutex>

#include "control.h"

namespace {

struct Driver {
  std::mutex mu;
  std::map<void*, size_t> registered;
  int init_result = 0;
  int register_result = 0;
  int (*find)(const void*, PretendAllocation*, int*) = nullptr;
  int dma_buf = 1;
  int writes_ordering = 100;
  int flushes = 0;
  int mistakes = 0;
  bool initialized = false;
};

Driver& driver() {
  static auto* made = new Driver;
  return *made;
}

thread_local int t_contexts = 0;
int the_context = 0;

// Notes a mistake unless `right`; returns CUDA_ERROR_INVALID_CONTEXT then.
int Check(bool right) {
  if (right) return 0;
  ++driver().mistakes;
  return 201;
}

}  // namespace

extern "C" {

void PretendCudaFail(int init, int host_register) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  driver().init_result = init;
  driver().register_result = host_register;
}

void PretendCudaServe(int (*find)(const void*, PretendAllocation*, int*)) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  driver().find = find;
}

void PretendCudaDirect(int dma_buf, int writes_ordering) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  driver().dma_buf = dma_buf;
  driver().writes_ordering = writes_ordering;
}

int PretendCudaFlushes() {
  const std::lock_guard<std::mutex> lock(driver().mu);
  return driver().flushes;
}

size_t PretendCudaRegisteredBytes() {
  const std::lock_guard<std::mutex> lock(driver().mu);
  size_t bytes = 0;
  for (const auto& [memory, length] : driver().registered) bytes += length;
  return bytes;
}

int PretendCudaMistakes() {
  const std::lock_guard<std::mutex> lock(driver().mu);
  return driver().mistakes;
}

int cuInit(unsigned flags) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  driver().initialized = driver().init_result == 0;
  return flags == 0 ? driver().init_result : Check(false);
}

int cuGetErrorString(int result, const char** text) {
  *text = result == 100 ? "no CUDA-capable device is detected" : "out of memory";
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 7;
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(ordinal == 0 && driver().initialized);
}

int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<size_t>(size), "0000:3B:00.0");
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(device == 7);
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &the_context;
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(device == 7);
}

int cuCtxPushCurrent_v2(void* context) {
  ++t_contexts;
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(context == &the_context);
}

int cuCtxPopCurrent_v2(void** context) {
  *context = &the_context;
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(--t_contexts >= 0);
}

int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  if (driver().register_result != 0) return driver().register_result;
  const bool fresh = driver().registered.emplace(memory, bytes).second;
  return Check(fresh && t_contexts == 1 && flags == 1);
}

int cuMemHostUnregister(void* memory) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  return Check(driver().registered.erase(memory) == 1 && t_contexts == 1);
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  if (attribute == 124) {
    *value = driver().dma_buf;
  } else if (attribute == 118) {
    *value = driver().writes_ordering;
  } else {
    return Check(false);
  }
  return Check(device == 7);
}

int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  PretendAllocation allocation = {};
  if (driver().find == nullptr ||
      driver().find(reinterpret_cast<void*>(address), &allocation, nullptr) == 0) {
    return 1;
  }
  switch (attribute) {
    case 1:
      *static_cast<void**>(value) = &the_context;
      return 0;
    case 7:
      *static_cast<unsigned long long*>(value) = allocation.id;
      return 0;
    case 9:
      *static_cast<int*>(value) = 0;
      return 0;
    case 11:
      *static_cast<void**>(value) = allocation.address;
      return 0;
    case 12:
      *static_cast<size_t*>(value) = allocation.size;
      return 0;
    default:
      return Check(false);
  }
}

int cuMemGetHandleForAddressRange(void* handle, uint64_t address, size_t bytes, int type,
                                  unsigned long long flags) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  PretendAllocation allocation = {};
  int file = -1;
  if (driver().find == nullptr ||
      driver().find(reinterpret_cast<void*>(address), &allocation, &file) == 0) {
    return Check(false);
  }
  *static_cast<int*>(handle) = file;
  return Check(reinterpret_cast<void*>(address) == allocation.address && bytes <= allocation.size &&
               bytes % 4096 == 0 && type == 1 && flags == 0 && t_contexts == 1);
}

int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  const std::lock_guard<std::mutex> lock(driver().mu);
  ++driver().flushes;
  return Check(target == 0 && scope == 100 && t_contexts == 1 && driver().writes_ordering < 100);
}
}
