// Memory of accelerators, as their drivers describe and export it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::memory {

// What a device's allocator got from the driver at once. TensorFlow divides it into tensors.
struct DeviceAllocation {
  char* address = nullptr;  // the processor cannot access it
  size_t length = 0;        // in bytes
  uint64_t id = 0;  // of no other allocation of this process, not even at this address later
};

// Thread-safe.
class DeviceExporter {
 public:
  virtual ~DeviceExporter() = default;

  // Finds the allocation in which `address` lies. Returns NotFound if it is not memory of a device.
  virtual Status Find(const void* address, DeviceAllocation* allocation) const = 0;
  // Exports whole pages of the allocation, from its beginning, as a DMA-BUF. Returns how many
  // bytes. Returns Unimplemented, with the reason, if the device or the driver cannot.
  virtual Status Export(const DeviceAllocation& allocation, fabric::host::FileDescriptor* file,
                        size_t* length) const = 0;
  // Returns the folder in sysfs of the device with this memory, or an empty string if that is not
  // known.
  virtual std::string FolderOf(const void* address) const = 0;
  // After a card has written to `address`: the device's operations that begin later see it.
  virtual Status FlushWrites(const void* address) const = 0;
};

}  // namespace rdma_transport::memory
