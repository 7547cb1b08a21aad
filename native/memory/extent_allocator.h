// Best fit with coalescing over address ranges. It never touches the memory it hands out: that
// memory is shared with peers, and what they could write must not steer this process.
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

  // Adds a range; `base` and `length` are multiples of kAlignment. Ranges are never merged with
  // each other.
  void AddRange(char* base, size_t length);
  // Takes back a range in which nothing is allocated; false if something is.
  bool RemoveRange(char* base);

  // Null when no free extent is long enough. `length` is above 0.
  char* Allocate(size_t length);
  // Returns the length that goes back; 0 if `address` was not allocated here.
  size_t Free(char* address);

 private:
  struct Extent {
    char* base;
    size_t length;
    bool free;
    Extent* previous;  // neighbours in address order, within one range
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
