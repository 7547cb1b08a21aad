// Memory of a device: addresses that the processor cannot use, and the mapping that it can. Each
// allocation is a memory file, mapped at both.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "control.h"

namespace pretend_accelerator {

class Memory {
 public:
  explicit Memory(uint64_t size);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Returns an address without access, or null.
  void* Allocate(uint64_t size);
  void Deallocate(void* address);

  uint64_t size() const { return size_; }
  uint64_t free_bytes() const;
  // Whether `address` lies in this memory, and where.
  bool Contains(const void* address, uint64_t* offset) const;
  char* mapped() const { return mapped_; }
  // The allocation in which `address` lies, and, if `file` is not null, a new descriptor of it.
  bool Find(const void* address, PretendAllocation* allocation, int* file) const;

 private:
  struct Used {
    uint64_t size = 0;  // rounded
    uint64_t id = 0;
    int file = -1;
  };

  const uint64_t size_;
  char* address_ = nullptr;
  char* mapped_ = nullptr;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // sizes by offset
  std::map<uint64_t, Used> used_;      // by offset
};

// The memory of a device of this process, which lives as long as the process.
Memory& MemoryOf(int ordinal);

// Where the processor reaches a device address. Ends the process with a message if it is none.
char* Reachable(const void* device_address);

// Ends the process with a message if this is a device address.
void CheckIsHost(const void* address);

}  // namespace pretend_accelerator
