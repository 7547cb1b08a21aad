// A region that peers can map: a memory file, mapped here for reading and writing.
#pragma once

#include <memory>

#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {

// See Region for the contract.
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

}  // namespace rdma_transport::fabric::host
