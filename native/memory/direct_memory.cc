#include "memory/direct_memory.h"

#include <iterator>
#include <string>

#include "base/log.h"

namespace rdma_transport::memory {

std::shared_ptr<fabric::Region> DirectMemory::Register(const void* data, uint64_t bytes) {
  DeviceAllocation allocation;
  if (!exporter_->Find(data, &allocation).ok()) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = entries_.find(allocation.address);
  const std::shared_ptr<fabric::Region> region =
      found != entries_.end() && found->second.allocation.id == allocation.id
          ? found->second.region
          : RegisterLocked(allocation);
  if (region == nullptr) return nullptr;
  // The last, incomplete page of an allocation is not exported.
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(data) - region->address());
  return offset + bytes <= region->length() ? region : nullptr;
}

std::shared_ptr<fabric::Region> DirectMemory::RegisterLocked(const DeviceAllocation& allocation) {
  DropFreedLocked();
  std::unique_ptr<fabric::Region> region;
  const Status imported = Import(allocation, &region);
  if (!imported.ok()) {
    ++refused_;
    Log(LogLevel::kWarning,
        "cards do not access " + std::to_string(allocation.length) +
            " bytes of an accelerator, whose tensors are copied instead: " + imported.message());
  }
  if (imported.ok()) ++registrations_;
  Entry& entry = entries_[allocation.address];
  entry = {allocation, std::move(region)};
  return entry.region;
}

Status DirectMemory::Import(const DeviceAllocation& allocation,
                            std::unique_ptr<fabric::Region>* region) {
  fabric::host::FileDescriptor file;
  size_t length = 0;
  const std::string folder = exporter_->FolderOf(allocation.address);
  Status exported = exporter_->Export(allocation, &file, &length);
  if (exported.ok()) {
    exported = device_->Import({file.get(), allocation.address, length, folder},
                               fabric::Access::kRemoteRead, region);
  }
  if (exported.ok()) return exported;
  const Status found = device_->Import({-1, allocation.address, allocation.length, folder},
                                       fabric::Access::kRemoteRead, region);
  if (found.ok()) return found;
  return Status(exported.code(), exported.message() + "; and the kernel cannot find it by its " +
                                     "address, as with nvidia_peermem: " + found.message());
}

// A registration keeps freed memory from being used otherwise, and its address may soon be that of
// another allocation.
void DirectMemory::DropFreedLocked() {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    DeviceAllocation now;
    const bool lives = exporter_->Find(entry->second.allocation.address, &now).ok() &&
                       now.id == entry->second.allocation.id;
    entry = lives ? std::next(entry) : entries_.erase(entry);
  }
}

DirectStats DirectMemory::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  DirectStats stats = {registrations_, refused_, 0};
  for (const auto& [address, entry] : entries_) {
    if (entry.region != nullptr) stats.bytes += entry.region->length();
  }
  return stats;
}

}  // namespace rdma_transport::memory
