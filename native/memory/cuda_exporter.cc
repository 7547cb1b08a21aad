#include "memory/cuda_exporter.h"

#include <unistd.h>

#include <cctype>

namespace rdma_transport::memory {
namespace {

// Values of the driver's enumerations.
constexpr int kPointerContext = 1;          // CU_POINTER_ATTRIBUTE_CONTEXT
constexpr int kPointerBufferId = 7;         // CU_POINTER_ATTRIBUTE_BUFFER_ID
constexpr int kPointerOrdinal = 9;          // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr int kPointerRangeStart = 11;      // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
constexpr int kPointerRangeSize = 12;       // CU_POINTER_ATTRIBUTE_RANGE_SIZE
constexpr int kDeviceWritesOrdering = 118;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
constexpr int kDeviceHasDmaBuf = 124;       // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
constexpr int kOrderedForOwner = 100;       // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
constexpr int kDmaBuf = 1;                  // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
constexpr int kFlushCurrentContext = 0;     // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
constexpr int kFlushToOwner = 100;          // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER

}  // namespace

Status CudaExporter::Locate(uint64_t address, int* device, void** context) const {
  int ordinal = 0;
  int result = driver_->get_pointer_attribute(&ordinal, kPointerOrdinal, address);
  if (result == 0) result = driver_->get_pointer_attribute(context, kPointerContext, address);
  if (result == 0) result = driver_->device_get(device, ordinal);
  if (result != 0) return Status(Code::kNotFound, driver_->Text(result));
  if (*context != nullptr) return OkStatus();
  return Status(Code::kUnimplemented,
                "it has no context: it is of a memory pool (TF_GPU_ALLOCATOR=cuda_malloc_async)");
}

Status CudaExporter::Find(const void* address, DeviceAllocation* allocation) const {
  const auto value = reinterpret_cast<uint64_t>(address);
  unsigned long long id = 0;
  int result = driver_->get_pointer_attribute(&id, kPointerBufferId, value);
  if (result == 0) {
    result = driver_->get_pointer_attribute(&allocation->address, kPointerRangeStart, value);
  }
  if (result == 0) {
    result = driver_->get_pointer_attribute(&allocation->length, kPointerRangeSize, value);
  }
  allocation->id = id;
  return result == 0 ? OkStatus() : Status(Code::kNotFound, driver_->Text(result));
}

Status CudaExporter::Export(const DeviceAllocation& allocation, fabric::host::FileDescriptor* file,
                            size_t* length) const {
  if (driver_->get_handle == nullptr) {
    return Status(Code::kUnimplemented,
                  "the CUDA driver cannot export memory of GPUs: it is older than CUDA 11.7");
  }
  const auto address = reinterpret_cast<uint64_t>(allocation.address);
  int device = 0;
  void* context = nullptr;
  RDMA_RETURN_IF_ERROR(Locate(address, &device, &context));
  int able = 0;
  if (driver_->get_device_attribute(&able, kDeviceHasDmaBuf, device) != 0 || able == 0) {
    return Status(Code::kUnimplemented,
                  "the GPU's driver has no DMA-BUF (it needs NVIDIA's open kernel modules and "
                  "Linux 5.12)");
  }
  *length = allocation.length & ~(static_cast<size_t>(sysconf(_SC_PAGESIZE)) - 1);
  int descriptor = -1;
  const int result = driver_->InContext(
      context, [&] { return driver_->get_handle(&descriptor, address, *length, kDmaBuf, 0); });
  if (result != 0) return Status(Code::kUnimplemented, driver_->Text(result));
  *file = fabric::host::FileDescriptor(descriptor);
  return OkStatus();
}

// The driver writes "0000:3B:00.0", the kernel small letters.
std::string CudaExporter::FolderOf(const void* address) const {
  int device = 0;
  void* context = nullptr;
  char text[32] = {};
  if (driver_->get_pci_address == nullptr ||
      !Locate(reinterpret_cast<uint64_t>(address), &device, &context).ok() ||
      driver_->get_pci_address(text, sizeof(text), device) != 0) {
    return std::string();
  }
  std::string folder = "/sys/bus/pci/devices/";
  for (const char* letter = text; *letter != '\0'; ++letter) {
    folder += static_cast<char>(std::tolower(static_cast<unsigned char>(*letter)));
  }
  return folder;
}

Status CudaExporter::FlushWrites(const void* address) const {
  int device = 0;
  void* context = nullptr;
  RDMA_RETURN_IF_ERROR(Locate(reinterpret_cast<uint64_t>(address), &device, &context));
  int ordering = 0;
  driver_->get_device_attribute(&ordering, kDeviceWritesOrdering, device);
  if (ordering >= kOrderedForOwner) return OkStatus();
  if (driver_->flush_writes == nullptr) {
    return Status(Code::kUnimplemented, "the CUDA driver cannot flush writes of cards");
  }
  const int result = driver_->InContext(
      context, [&] { return driver_->flush_writes(kFlushCurrentContext, kFlushToOwner); });
  return result == 0 ? OkStatus() : Status(Code::kInternal, driver_->Text(result));
}

}  // namespace rdma_transport::memory
