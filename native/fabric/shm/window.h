// One reserved address range of this process in which all memory of peers is mapped, read-only, so
// that "is this somebody else's memory?" is two comparisons.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"

namespace rdma_transport::fabric::shm {

// A region of some process as it is mapped here; unmapped on destruction.
class Mapping {
 public:
  Mapping(char* address, size_t length, uint64_t key, uint64_t owner)
      : address_(address), length_(length), key_(key), owner_(owner) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const char* address() const { return address_; }
  char* writable_address() const { return address_; }
  size_t length() const { return length_; }
  uint64_t key() const { return key_; }
  // The id of the device whose memory it is.
  uint64_t owner() const { return owner_; }

 private:
  char* const address_;
  const size_t length_;
  const uint64_t key_;
  const uint64_t owner_;
};

class Window {
 public:
  // All regions are multiples of this, so that one table entry answers for one granule.
  static constexpr size_t kGranule = size_t{2} << 20;

  static Window& Get();

  // Maps `length` bytes (a multiple of kGranule) of `fd`.
  Status Map(int fd, size_t length, bool writable, uint64_t key, uint64_t owner,
             std::shared_ptr<Mapping>* mapping);

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
};

}  // namespace rdma_transport::fabric::shm
