// Pools of memory blocks for allocation sites whose buffers are sent in every step. Their buffers
// are allocated at a few fixed addresses, which both sides of an edge know.
//
// Sites of the same size share blocks: the block freed last, which is most likely in the cache, is
// handed out first. Buffers that are in use at the same time spread over several sets of blocks,
// so that each site keeps to the few addresses of its set.
//
// A site is the name of the operation that allocates. The relevant sites come from the plan of the
// graph or from tracing: while tracing is on, the site of each allocation is recorded.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "memory/arena.h"

namespace rdma_transport::memory {

class SlotPools;

// One site's share of a set of blocks. When the last pool of a set is dropped, free blocks return
// to the arena immediately and the others when they are freed.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  ~SlotPool();
  const std::string& site() const { return site_; }
  size_t bytes() const { return bytes_; }
  // Returns the addresses of all blocks that the site may get. Thread-safe.
  std::vector<char*> Blocks() const;

 private:
  friend class SlotPools;
  struct BlockSet {
    std::vector<char*> blocks;
    std::vector<char*> free;  // a stack
    size_t unused = 0;        // how many of these have been free since the last ReleaseUnused()
    size_t wanted = 0;        // the most slots of an edge
    int pools = 0;
  };
  SlotPool(SlotPools* owner, std::string site, size_t bytes)
      : owner_(owner), site_(std::move(site)), bytes_(bytes) {}

  SlotPools* const owner_;
  const std::string site_;
  const size_t bytes_;
  // Guarded by the owner's lock.
  BlockSet* set_ = nullptr;
  int moves_ = 0;
};

// A snapshot of all pools.
struct SlotPoolStats {
  uint64_t pools = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t blocks_ever = 0;  // added since the start
};

// Thread-safe. Must outlive its pools.
class SlotPools {
 public:
  // If `arena` runs out of budget, all free blocks go back to it.
  explicit SlotPools(Arena* arena) : arena_(arena) {
    arena_->SetReclaim([this] { ReleaseFree(); });
  }
  ~SlotPools() { arena_->SetReclaim(nullptr); }

  // Returns the pool of this site and size, after adding blocks until its set has
  // ReservedBlocks(bytes, count), at most kMaxPoolBlocks. The set has fewer if the arena is
  // exhausted. It takes blocks from the arena only here and when all its blocks are in use.
  std::shared_ptr<SlotPool> Reserve(std::string_view site, size_t bytes, size_t count);

  // Adds to the pool's set a block that is in use and that the arena allocated with the pool's
  // size. When the block is freed, it stays in the set. Does nothing if the set is full or the
  // block is already in a pool.
  void Join(SlotPool* pool, char* address);

  // Returns a block for an allocation at `site`. A site whose set is full and in use moves to
  // another set, a limited number of times. Returns null if the site has no pool, or if all blocks
  // are in use and no more can be added.
  char* Allocate(std::string_view site, size_t bytes);
  // Returns false if `address` is not a block of a pool.
  bool Free(char* address);
  // Returns to the arena the large blocks that have been free since the last call.
  void ReleaseUnused();
  // Returns whether Allocate(), Free() and Trace() have anything to do. Cheap.
  bool active() const { return active_.load(std::memory_order_relaxed); }

  // Records the sites of the next `allocations` allocations.
  void StartTracing(int allocations) {
    tracing_.store(allocations, std::memory_order_relaxed);
    active_.store(true);
  }
  bool tracing() const { return tracing_.load(std::memory_order_relaxed) > 0; }
  void Trace(char* address, std::string_view site, size_t bytes);
  // Returns the site and the size of a live block. Returns false if the block is neither in a pool
  // nor traced.
  bool SiteOf(const char* address, std::string* site, size_t* bytes) const;

  // Returns the bytes of all blocks, including those that edges were promised and that are taken
  // when they are needed.
  uint64_t PromisedBytes() const;
  SlotPoolStats Stats() const;

 private:
  friend class SlotPool;
  struct Traced {
    std::string site;
    size_t bytes;
  };
  using BlockSet = SlotPool::BlockSet;
  struct Block {
    BlockSet* set;  // null: all its pools are gone
    size_t bytes;
    std::string site;  // the last one that allocated it
  };
  struct SizeClass {
    std::map<std::string, SlotPool*, std::less<>> pools;  // by site
    std::list<BlockSet> sets;
  };

  bool AddLocked(SlotPool* pool, char* block);
  void Fill(SlotPool* pool, size_t count);
  void ReleaseFree();
  void ReleaseUnusedLocked(size_t above);
  SlotPool* FindLocked(std::string_view site, size_t bytes) const;
  void EnterSetLocked(SlotPool* pool);
  void LeaveSetLocked(SlotPool* pool);
  void Retire(SlotPool* pool);

  Arena* const arena_;
  std::atomic<bool> active_{false};
  std::atomic<int> tracing_{0};

  mutable std::mutex mu_;
  std::unordered_map<size_t, SizeClass> classes_;  // by bytes
  std::unordered_map<char*, Block> blocks_;
  std::unordered_map<const char*, Traced> traced_;
  SlotPoolStats stats_;
};

}  // namespace rdma_transport::memory
