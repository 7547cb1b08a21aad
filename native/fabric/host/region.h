// Regions: of memory files, which peers can map, and of memory of accelerators. And what every
// device checks before it makes one.
#pragma once

#include <cstddef>
#include <memory>

#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {

// Returns FailedPrecondition in a process that was forked from the one that opened `device`.
Status CheckNotForked(const Device& device);
// As above; also returns InvalidArgument if a region of `device` cannot have `length` bytes.
Status CheckAllocation(const Device& device, size_t length);

// A memory file, mapped here for reading and writing. See Region for the contract.
class MemoryRegion final : public Region {
 public:
  // `place` is as in Device::Allocate(). Returns ResourceExhausted if the memory is not available.
  static Status Create(uint64_t key, size_t length, Access access, void* place,
                       std::unique_ptr<MemoryRegion>* region);
  ~MemoryRegion() override;

  int fd() const { return file_.get(); }

 private:
  MemoryRegion() = default;

  FileDescriptor file_;
  bool placed_ = false;  // lies in an address range of the caller
};

// Memory of an accelerator, which belongs to another owner. See Region for the contract.
class ImportedRegion final : public Region {
 public:
  ImportedRegion(uint64_t key, const DeviceMemory& memory, Access access) {
    address_ = memory.address;
    length_ = memory.length;
    key_ = key;
    access_ = access;
  }
  ~ImportedRegion() override { RunHooks(); }
};

}  // namespace rdma_transport::fabric::host
