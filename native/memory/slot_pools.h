// Memory set aside for the allocation sites whose buffers are sent step after step, so that these
// are born at a few fixed addresses, which both sides of an edge know.
//
// A site is the name of the operation that allocates. Which sites matter is planned from the graph,
// or seen by tracing: while tracing is on, the site of each allocation is remembered.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "memory/arena.h"

namespace rdma_transport::memory {

class SlotPools;

// Holds a site's blocks; the last holder gives those that are free back to the arena at once, and
// the others when they are freed.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  ~SlotPool();
  const std::string& site() const { return site_; }
  size_t bytes() const { return bytes_; }
  std::vector<char*> Blocks() const;

 private:
  friend class SlotPools;
  SlotPool(SlotPools* owner, std::string site, size_t bytes)
      : owner_(owner), site_(std::move(site)), bytes_(bytes) {}

  SlotPools* const owner_;
  const std::string site_;
  const size_t bytes_;
  // Under the owner's lock.
  std::vector<char*> blocks_;
  std::vector<char*> free_;
};

struct SlotPoolStats {
  uint64_t pools = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t blocks_ever = 0;  // set aside since the beginning
};

// Thread-safe.
class SlotPools {
 public:
  // As many blocks as a pool may grow to.
  static constexpr size_t kMaxBlocks = 12;

  explicit SlotPools(Arena* arena) : arena_(arena) {}

  // The pool of that site and size, with at least `count` blocks; null when the arena has no room
  // for one. Blocks are taken from the arena only here and when all of them are in use.
  std::shared_ptr<SlotPool> Reserve(std::string_view site, size_t bytes, size_t count);

  // Makes a block in use, allocated from the arena for as many bytes, one of the pool's: when it is
  // freed, it will be used again there.
  void Join(SlotPool* pool, char* address);

  // A block for an allocation at `site`; null: no pool serves it, or all of its blocks are in use.
  char* Allocate(std::string_view site, size_t bytes);
  // False: not a pool's block.
  bool Free(char* address);
  // Cheap: whether Allocate(), Free() and Trace() have anything to do.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // The next `allocations` ones are remembered with their site.
  void StartTracing(int allocations) {
    tracing_.store(allocations, std::memory_order_relaxed);
    active_.store(true);
  }
  bool tracing() const { return tracing_.load(std::memory_order_relaxed) > 0; }
  void Trace(char* address, std::string_view site, size_t bytes);
  // Where a live block was allocated, and how long it is. False: it was not traced.
  bool SiteOf(const char* address, std::string* site, size_t* bytes) const;

  SlotPoolStats Stats() const;

 private:
  friend class SlotPool;
  struct Traced {
    std::string site;
    size_t bytes;
  };
  struct Key {
    size_t bytes;
    std::string site;
    bool operator<(const Key& other) const {
      return bytes != other.bytes ? bytes < other.bytes : site < other.site;
    }
  };

  bool AddLocked(SlotPool* pool, char* block);
  void Fill(SlotPool* pool, size_t count);
  SlotPool* FindLocked(std::string_view site, size_t bytes) const;
  void Retire(SlotPool* pool);

  Arena* const arena_;
  std::atomic<bool> active_{false};
  std::atomic<int> tracing_{0};

  mutable std::mutex mu_;
  std::map<Key, std::weak_ptr<SlotPool>> pools_;
  std::unordered_map<size_t, std::vector<SlotPool*>> by_bytes_;
  std::unordered_map<char*, SlotPool*> blocks_;  // null: its pool is gone
  std::unordered_map<const char*, Traced> traced_;
  SlotPoolStats stats_;
};

}  // namespace rdma_transport::memory
