// A best-fit allocator with coalescing over address ranges. It keeps its bookkeeping outside the
// memory that it hands out, because peers may be able to write that memory.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <unordered_map>

namespace rdma_transport::memory {

// Not thread-safe.
class ExtentAllocator {
 public:
  static constexpr size_t kAlignment = 64;

  ExtentAllocator() = default;
  ~ExtentAllocator();
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;

  // Adds a range. `base` and `length` must be multiples of kAlignment. Ranges are not merged.
  void AddRange(char* base, size_t length);
  // Removes a range. Returns false if the range has allocations.
  bool RemoveRange(char* base);

  // Returns null if no free extent is long enough. `length` must be positive.
  char* Allocate(size_t length);
  // Returns the length that was freed, or 0 if `address` is not allocated.
  size_t Free(char* address);

 private:
  struct Extent {
    char* base;
    size_t length;
    bool free;
    Extent* previous;  // neighbors in address order, within one range
    Extent* next;
  };
  struct BySize {
    using is_transparent = void;
    bool operator()(const Extent* a, const Extent* b) const {
      return a->length != b->length ? a->length < b->length : a->base < b->base;
    }
    bool operator()(const Extent* a, size_t length) const { return a->length < length; }
    bool operator()(size_t length, const Extent* b) const { return length < b->length; }
  };

  void Unite(Extent* left, Extent* right);

  std::set<Extent*, BySize> free_;
  std::unordered_map<char*, Extent*> allocated_;
  std::unordered_map<char*, Extent*> range_heads_;
};

}  // namespace rdma_transport::memory
