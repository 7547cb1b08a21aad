// One reserved address range in which this process maps all memory of peers, read-only. Two
// comparisons then show whether an address is memory of a peer.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.h"

namespace rdma_transport::fabric::shm {

// Identifies the owner of memory: a number that its device chose, and its process ID, which the
// kernel guarantees.
struct Owner {
  uint64_t device = 0;
  pid_t process = 0;
  bool operator==(const Owner& other) const {
    return device == other.device && process == other.process;
  }
};

// A region of any process, mapped here. Unmapped on destruction.
class Mapping {
 public:
  // `presence` is released after the memory is unmapped.
  Mapping(char* address, size_t length, bool writable, uint64_t key, const Owner& owner,
          std::shared_ptr<const void> presence)
      : address_(address),
        length_(length),
        writable_(writable),
        key_(key),
        owner_(owner),
        presence_(std::move(presence)) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* address() const { return address_; }
  // Returns null if the peer shared the region read-only.
  char* writable_address() const { return writable_ ? address_ : nullptr; }
  size_t length() const { return length_; }
  uint64_t key() const { return key_; }
  const Owner& owner() const { return owner_; }

 private:
  char* const address_;
  const size_t length_;
  const bool writable_;
  const uint64_t key_;
  const Owner owner_;
  const std::shared_ptr<const void> presence_;
};

// Returns the memory of the host, with swap.
uint64_t HostMemory();

// Thread-safe singleton.
class Window {
 public:
  // The length of every region is a multiple of this, so one table entry covers one granule.
  static constexpr size_t kGranule = size_t{2} << 20;

  static Window& Get();

  // Returns how large it is on a host with so much memory: all of it fits, also in pieces.
  static size_t SizeFor(uint64_t memory);

  // Maps `length` bytes of `fd`; `length` must be a multiple of kGranule. Returns
  // ResourceExhausted if address space or mappings run out, FailedPrecondition if a limit forbids
  // any window.
  Status Map(int fd, size_t length, bool writable, uint64_t key, const Owner& owner,
             std::shared_ptr<const void> presence, std::shared_ptr<Mapping>* mapping);

  bool Contains(const void* data) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return address - base_.load(std::memory_order_relaxed) < size_.load(std::memory_order_relaxed);
  }
  // Returns the mapping that contains `data`, or null. The caller must keep the mapping alive.
  const Mapping* Find(const void* data) const;

 private:
  friend class Mapping;

  Status ReserveLocked();
  Status TakeLocked(size_t length, char** address);
  void GiveBack(char* address, size_t length);
  size_t GranuleOf(const void* data) const;

  std::atomic<uintptr_t> base_{0};
  std::atomic<size_t> size_{0};
  std::unique_ptr<std::atomic<const Mapping*>[]> table_;
  std::mutex mu_;
  std::map<char*, size_t> free_;  // address -> length, no two adjacent
  size_t mappings_ = 0;
};

}  // namespace rdma_transport::fabric::shm
