#include "fabric/shm/window.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <cerrno>
#include <iterator>

namespace rdma_transport::fabric::shm {
namespace {

constexpr uint64_t kUsualWindow = uint64_t{1} << 38;
constexpr uint64_t kLargestWindow = uint64_t{1} << 45;
constexpr size_t kSmallestWindow = size_t{1} << 32;
// Each mapping takes an entry of the process's kernel table (vm.max_map_count, usually 65530).
// Peers choose how many regions they share, so limit them.
constexpr size_t kMaxMappings = 16384;

}  // namespace

uint64_t HostMemory() {
  struct sysinfo info = {};
  sysinfo(&info);
  return (uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
}

Mapping::~Mapping() { Window::Get().GiveBack(address_, length_); }

Window& Window::Get() {
  static Window* window = new Window;
  return *window;
}

size_t Window::SizeFor(uint64_t memory) {
  uint64_t size = kUsualWindow;
  while (size < kLargestWindow && size < 2 * memory) size *= 2;
  return size;
}

// Address space only. If a limit (RLIMIT_AS) forbids it, smaller windows are tried.
Status Window::ReserveLocked() {
  for (size_t size = SizeFor(HostMemory()); size >= kSmallestWindow; size /= 4) {
    // Reserve an extra granule for alignment.
    void* reserved = mmap(nullptr, size + kGranule, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) continue;
    const uintptr_t base =
        (reinterpret_cast<uintptr_t>(reserved) + kGranule - 1) / kGranule * kGranule;
    table_.reset(new std::atomic<const Mapping*>[size / kGranule]());
    free_[reinterpret_cast<char*>(base)] = size;
    base_.store(base);
    size_.store(size);
    return OkStatus();
  }
  // Without any window nothing of a peer can be reached, so this is not of one region.
  return Status(Code::kFailedPrecondition,
                StatusFromErrno(errno, "reserving address space to map peers' memory (RLIMIT_AS?)")
                    .message());
}

Status Window::TakeLocked(size_t length, char** address) {
  if (mappings_ >= kMaxMappings) {
    return Status(Code::kResourceExhausted, "peers share too many regions with this process");
  }
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->second < length) continue;
    *address = range->first;
    const size_t rest = range->second - length;
    free_.erase(range);
    if (rest > 0) free_[*address + length] = rest;
    ++mappings_;
    return OkStatus();
  }
  return Status(Code::kResourceExhausted, "no address space left to map peers' memory");
}

Status Window::Map(int fd, size_t length, bool writable, uint64_t key, const Owner& owner,
                   std::shared_ptr<const void> presence, std::shared_ptr<Mapping>* mapping) {
  if (length == 0 || length % kGranule != 0) {
    return Status(Code::kInvalidArgument, "a region of " + std::to_string(length) + " bytes");
  }
  char* address = nullptr;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (size_.load() == 0) RDMA_RETURN_IF_ERROR(ReserveLocked());
    RDMA_RETURN_IF_ERROR(TakeLocked(length, &address));
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  if (mmap(address, length, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const Status status = StatusFromErrno(errno, "mapping a region of a peer");
    GiveBack(address, length);
    return status;
  }
#ifdef MADV_POPULATE_READ
  // Populate the page tables now to avoid a fault per page in the first step. Failure only costs
  // time.
  madvise(address, length, MADV_POPULATE_READ);
#endif
  *mapping = std::make_shared<Mapping>(address, length, writable, key, owner, std::move(presence));
  for (size_t offset = 0; offset < length; offset += kGranule) {
    table_[GranuleOf(address + offset)].store(mapping->get(), std::memory_order_release);
  }
  return OkStatus();
}

void Window::GiveBack(char* address, size_t length) {
  for (size_t offset = 0; offset < length; offset += kGranule) {
    table_[GranuleOf(address + offset)].store(nullptr, std::memory_order_release);
  }
  mmap(address, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  std::lock_guard<std::mutex> lock(mu_);
  --mappings_;
  auto next = free_.lower_bound(address);
  if (next != free_.end() && address + length == next->first) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == address) {
      previous->second += length;
      return;
    }
  }
  free_[address] = length;
}

size_t Window::GranuleOf(const void* data) const {
  return (reinterpret_cast<uintptr_t>(data) - base_.load(std::memory_order_relaxed)) / kGranule;
}

const Mapping* Window::Find(const void* data) const {
  if (!Contains(data)) return nullptr;
  return table_[GranuleOf(data)].load(std::memory_order_acquire);
}

}  // namespace rdma_transport::fabric::shm

namespace rdma_transport::fabric {

bool IsMapped(const void* data) { return shm::Window::Get().Contains(data); }

}  // namespace rdma_transport::fabric
