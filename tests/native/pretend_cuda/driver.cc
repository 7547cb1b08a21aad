#include <map>
#include <mutex>

#include "control.h"

namespace {

struct Driver {
  std::mutex mu;
  std::map<void*, size_t> registered;
  int init_result = 0;
  int register_result = 0;
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
}
