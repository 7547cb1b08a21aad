#include "fabric/host/region.h"

#include <sys/mman.h>

#include <cerrno>
#include <string>
#include <utility>

#include "fabric/host/fork_guard.h"
#include "fabric/host/memory_file.h"

namespace rdma_transport::fabric::host {

Status CheckNotForked(const Device& device) {
  if (device.Usable()) return OkStatus();
  return Status(Code::kFailedPrecondition,
                "the device belongs to the process that forked this one");
}

Status CheckAllocation(const Device& device, size_t length) {
  RDMA_RETURN_IF_ERROR(CheckNotForked(device));
  if (length != 0 && length % device.RegionGranule() == 0) return OkStatus();
  return Status(Code::kInvalidArgument, "a region's length must be a multiple of " +
                                            std::to_string(device.RegionGranule()));
}

Status MemoryRegion::Create(uint64_t key, size_t length, Access access, void* place,
                            std::unique_ptr<MemoryRegion>* region) {
  std::unique_ptr<MemoryRegion> made(new MemoryRegion);
  RDMA_RETURN_IF_ERROR(CreateMemoryFile("rdma_transport_arena", length, &made->file_));
  const int flags = MAP_SHARED | (place == nullptr ? 0 : MAP_FIXED);
  void* address = mmap(place, length, PROT_READ | PROT_WRITE, flags, made->fd(), 0);
  if (address == MAP_FAILED) return StatusFromErrno(errno, "mapping a region");
  made->address_ = static_cast<char*>(address);
  made->length_ = length;
  made->key_ = key;
  made->access_ = access;
  made->placed_ = place != nullptr;
  if (access == Access::kRemoteRead) RDMA_RETURN_IF_ERROR(SealAgainstNewWriters(made->fd()));
#ifdef MADV_POPULATE_WRITE
  // Populate the page tables now to avoid a fault per page in the first step. Failure only costs
  // time.
  madvise(address, length, MADV_POPULATE_WRITE);
#endif
  GuardMemory(address, length, made->fd());
  *region = std::move(made);
  return OkStatus();
}

MemoryRegion::~MemoryRegion() {
  if (address_ == nullptr) return;
  UnguardMemory(address_);
  RunHooks();
  if (placed_) {
    mmap(address_, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
         0);
  } else {
    munmap(address_, length_);
  }
}

}  // namespace rdma_transport::fabric::host
