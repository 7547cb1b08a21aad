// TensorFlow's CPU devices, as TensorFlow makes them, but large tensors lie in memory that the
// other ranks of this host read in place. Those that were made before the library was loaded stay
// as they are.
#include <memory>
#include <string>
#include <vector>

#include "collectives/shared_arena.h"
#include "tensorflow/core/common_runtime/device_factory.h"
#include "tensorflow/core/common_runtime/process_state.h"
#include "tensorflow/core/common_runtime/threadpool_device.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/public/session_options.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;
using collectives::SharedArena;

constexpr size_t kMinShared = 256 << 10;  // bytes; smaller ones are copied in any case
constexpr size_t kAlignment = 64;
constexpr int kPriority = 200;  // above TensorFlow's own

class SharedAllocator final : public tf::Allocator {
 public:
  std::string Name() override { return "rdma_shared"; }
  void* AllocateRaw(size_t alignment, size_t bytes) override {
    if (bytes >= kMinShared && alignment <= kAlignment) {
      if (char* memory = SharedArena::Get().Allocate(bytes)) return memory;
    }
    return base_->AllocateRaw(alignment, bytes);
  }
  void DeallocateRaw(void* memory) override {
    if (!SharedArena::Get().Free(static_cast<char*>(memory))) base_->DeallocateRaw(memory);
  }

 private:
  tf::Allocator* const base_ =
      tf::ProcessState::singleton()->GetCPUAllocator(tf::port::kNUMANoAffinity);
};

class CpuDevices final : public tf::DeviceFactory {
 public:
  absl::Status ListPhysicalDevices(std::vector<std::string>* devices) override {
    devices->push_back("/physical_device:CPU:0");
    return absl::OkStatus();
  }
  absl::Status CreateDevices(const tf::SessionOptions& options, const std::string& prefix,
                             std::vector<std::unique_ptr<tf::Device>>* devices) override {
    static auto* allocator = new SharedAllocator;
    const auto counted = options.config.device_count().find("CPU");
    const int count = counted == options.config.device_count().end() ? 1 : counted->second;
    for (int i = 0; i < count; ++i) {
      tf::DeviceLocality locality;
      if (options.config.experimental().use_numa_affinity()) {
        locality.set_numa_node(i % tf::port::NUMANumNodes());
      }
      devices->push_back(std::make_unique<tf::ThreadPoolDevice>(
          options, prefix + "/device:CPU:" + std::to_string(i), tf::Bytes(256 << 20), locality,
          allocator));
    }
    return absl::OkStatus();
  }
};

const bool registered = [] {
  tf::DeviceFactory::Register("CPU", std::make_unique<CpuDevices>(), kPriority,
                              /*is_pluggable_device=*/false);
  return true;
}();

}  // namespace
}  // namespace rdma_transport
