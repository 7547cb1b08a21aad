// Registrations of accelerators' memory, so that cards read and write it themselves.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "fabric/fabric.h"
#include "memory/device_exporter.h"

namespace rdma_transport::memory {

// A snapshot.
struct DirectStats {
  uint64_t registrations = 0;  // since the start
  uint64_t refused = 0;        // allocations that could not be registered, since the start
  uint64_t bytes = 0;          // registered now
};

// Registers each allocation once, when a tensor in it is first sent or received: as a DMA-BUF, or
// else by its address. Thread-safe.
class DirectMemory {
 public:
  // `device` must outlive this.
  DirectMemory(fabric::Device* device, std::unique_ptr<DeviceExporter> exporter)
      : device_(device), exporter_(std::move(exporter)) {}

  // Returns the registration of the allocation in which these bytes lie, or null if it cannot be
  // registered; the first time, the reason is logged. The bytes must stay allocated, and the result
  // be held, while a card may access them.
  std::shared_ptr<fabric::Region> Register(const void* data, uint64_t bytes);

  DirectStats Stats() const;

  // See DeviceExporter.
  Status FlushWrites(const void* address) const { return exporter_->FlushWrites(address); }

 private:
  struct Entry {
    DeviceAllocation allocation;
    std::shared_ptr<fabric::Region> region;  // null if it was refused
  };

  std::shared_ptr<fabric::Region> RegisterLocked(const DeviceAllocation& allocation);
  Status Import(const DeviceAllocation& allocation, std::unique_ptr<fabric::Region>* region);
  void DropFreedLocked();

  fabric::Device* const device_;
  const std::unique_ptr<DeviceExporter> exporter_;
  mutable std::mutex mu_;                 // held during a registration
  std::map<const char*, Entry> entries_;  // by address of the allocation
  uint64_t registrations_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace rdma_transport::memory
