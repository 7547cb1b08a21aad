// Memory of a device: addresses that the processor cannot use, and the mapping that it can.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

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
  int file() const { return file_; }
  // Whether `address` lies in this memory, and where.
  bool Contains(const void* address, uint64_t* offset) const;
  char* mapped() const { return mapped_; }

 private:
  const uint64_t size_;
  int file_ = -1;
  char* address_ = nullptr;
  char* mapped_ = nullptr;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;  // sizes by offset
  std::map<uint64_t, uint64_t> used_;
};

// The memory of a device of this process, which lives as long as the process.
Memory& MemoryOf(int ordinal);

// Where the processor reaches a device address. Ends the process with a message if it is none.
char* Reachable(const void* device_address);

// Ends the process with a message if this is a device address.
void CheckIsHost(const void* address);

}  // namespace pretend_accelerator
