// Exports memory of GPUs by the CUDA driver, which can do so from 11.7 on.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "memory/cuda_driver.h"
#include "memory/device_exporter.h"

namespace rdma_transport::memory {

// See DeviceExporter for the contract.
class CudaExporter final : public DeviceExporter {
 public:
  explicit CudaExporter(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}

  Status Find(const void* address, DeviceAllocation* allocation) const override;
  Status Export(const DeviceAllocation& allocation, fabric::host::FileDescriptor* file,
                size_t* length) const override;
  std::string FolderOf(const void* address) const override;
  Status FlushWrites(const void* address) const override;

 private:
  // Gets the GPU of an address and the context in which it was allocated.
  Status Locate(uint64_t address, int* device, void** context) const;

  const std::shared_ptr<const CudaDriver> driver_;
};

}  // namespace rdma_transport::memory
