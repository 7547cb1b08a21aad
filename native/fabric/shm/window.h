// One reserved address range of this process in which all memory of peers is mapped, read-only, so
// that "is this somebody else's memory?" is two comparisons.
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

// Whose memory it is: the number that a device gave itself, and the process, for which the kernel
// vouches.
struct Owner {
  uint64_t device = 0;
  pid_t process = 0;
  bool operator==(const Owner& other) const {
    return device == other.device && process == other.process;
  }
};

// A region of some process as it is mapped here; unmapped on destruction.
class Mapping {
 public:
  // `presence` is let go of after the memory.
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
  // Null: the peer allows reads only.
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

class Window {
 public:
  // All regions are multiples of this, so that one table entry answers for one granule.
  static constexpr size_t kGranule = size_t{2} << 20;

  static Window& Get();

  // Maps `length` bytes (a multiple of kGranule) of `fd`.
  Status Map(int fd, size_t length, bool writable, uint64_t key, const Owner& owner,
             std::shared_ptr<const void> presence, std::shared_ptr<Mapping>* mapping);

  bool Contains(const void* data) const {
    const auto address = reinterpret_cast<uintptr_t>(data);
    return address - base_.load(std::memory_order_relaxed) < size_.load(std::memory_order_relaxed);
  }
  // The mapping in which `data` lies, or null. The caller keeps it alive by whatever told it of
  // `data`.
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
