#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "control.h"
#include "settings.h"

namespace pretend_accelerator {
namespace {

constexpr uint64_t kAlignment = 4096;

void Require(bool condition, const char* message) {
  if (condition) return;
  std::fprintf(stderr, "pretend accelerator: %s\n", message);
  std::abort();
}

constexpr int kReserved = -1;

// Maps a file at a place, or anywhere if null; kReserved: nothing yet.
char* Map(void* place, uint64_t size, int protection, int file) {
  const int flags = (place == nullptr ? 0 : MAP_FIXED) |
                    (file == kReserved ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
  void* mapped = mmap(place, size, protection, flags, file, 0);
  Require(mapped != MAP_FAILED, "cannot map the memory file");
  return static_cast<char*>(mapped);
}

int MemoryFile(uint64_t size) {
  const int file = memfd_create("pretend_accelerator", MFD_CLOEXEC);
  Require(file >= 0 && ftruncate(file, static_cast<off_t>(size)) == 0, "no memory file");
  return file;
}

const std::vector<Memory*>& Memories() {
  static const auto* memories = [] {
    auto* made = new std::vector<Memory*>;
    // TensorFlow leaves up to 300 MiB of it unused.
    constexpr uint64_t kBytes = uint64_t{4} << 30;
    for (int64_t i = 0; i < settings().devices; ++i) made->push_back(new Memory(kBytes));
    return made;
  }();
  return *memories;
}

const Memory* Find(const void* address, uint64_t* offset) {
  for (const Memory* memory : Memories()) {
    if (memory->Contains(address, offset)) return memory;
  }
  return nullptr;
}

}  // namespace

Memory::Memory(uint64_t size) : size_(size), free_{{0, size}} {
  address_ = Map(nullptr, size, PROT_NONE, kReserved);
  mapped_ = Map(nullptr, size, PROT_NONE, kReserved);
}

void* Memory::Allocate(uint64_t size) {
  if (Strikes(&settings().fail_alloc, /*lasting=*/true)) return nullptr;
  const uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, room] = *range;
    if (room < rounded) continue;
    free_.erase(range);
    if (room > rounded) free_[offset + rounded] = room - rounded;
    static uint64_t last_id = 0;
    const Used& used = used_[offset] = {rounded, ++last_id, MemoryFile(rounded)};
    Map(address_ + offset, rounded, PROT_NONE, used.file);
    Map(mapped_ + offset, rounded, PROT_READ | PROT_WRITE, used.file);
    counters().allocated_bytes += rounded;
    return address_ + offset;
  }
  return nullptr;
}

void Memory::Deallocate(void* address) {
  uint64_t offset = 0;
  Require(Contains(address, &offset), "this is not memory of the device");
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto used = used_.find(offset);
  Require(used != used_.end(), "this was not allocated");
  uint64_t size = used->second.size;
  Map(address_ + offset, size, PROT_NONE, kReserved);
  Map(mapped_ + offset, size, PROT_NONE, kReserved);
  close(used->second.file);
  used_.erase(used);
  counters().allocated_bytes -= size;
  const auto after = free_.find(offset + size);
  if (after != free_.end()) {
    size += after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_[offset] = size;
}

uint64_t Memory::free_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& range : free_) bytes += range.second;
  return bytes;
}

bool Memory::Contains(const void* address, uint64_t* offset) const {
  const auto first = reinterpret_cast<uintptr_t>(address_);
  const auto sought = reinterpret_cast<uintptr_t>(address);
  if (sought < first || sought - first >= size_) return false;
  *offset = sought - first;
  return true;
}

bool Memory::Find(const void* address, PretendAllocation* allocation, int* file) const {
  uint64_t offset = 0;
  if (!Contains(address, &offset)) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  auto found = used_.upper_bound(offset);
  if (found == used_.begin()) return false;
  const auto& [start, used] = *--found;
  if (offset - start >= used.size) return false;
  *allocation = {address_ + start, used.size, used.id};
  if (file != nullptr) *file = fcntl(used.file, F_DUPFD_CLOEXEC, 0);
  return true;
}

Memory& MemoryOf(int ordinal) { return *Memories().at(static_cast<size_t>(ordinal)); }

char* Reachable(const void* device_address) {
  uint64_t offset = 0;
  const Memory* memory = Find(device_address, &offset);
  Require(memory != nullptr, "a host address where a device address belongs");
  return memory->mapped() + offset;
}

void CheckIsHost(const void* address) {
  uint64_t offset = 0;
  Require(Find(address, &offset) == nullptr, "a device address where a host address belongs");
}

}  // namespace pretend_accelerator

int PretendAcceleratorFind(const void* address, PretendAllocation* allocation, int* file) {
  uint64_t offset = 0;
  const pretend_accelerator::Memory* memory = pretend_accelerator::Find(address, &offset);
  return memory != nullptr && memory->Find(address, allocation, file) ? 1 : 0;
}
