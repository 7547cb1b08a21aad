#include "memory/slot_pools.h"

#include <algorithm>
#include <utility>

#include "memory/slot_policy.h"

namespace rdma_transport::memory {

SlotPool::~SlotPool() { owner_->Retire(this); }

std::vector<char*> SlotPool::Blocks() const {
  std::lock_guard<std::mutex> lock(owner_->mu_);
  return set_->blocks;
}

// Returns false if the set is full.
bool SlotPools::AddLocked(SlotPool* pool, char* block) {
  if (pool->set_->blocks.size() >= kMaxPoolBlocks) return false;
  pool->set_->blocks.push_back(block);
  blocks_[block] = {pool->set_, pool->bytes_, pool->site_};
  ++stats_.blocks;
  ++stats_.blocks_ever;
  stats_.bytes += pool->bytes_;
  return true;
}

// Does not hold the lock while the arena may grow.
void SlotPools::Fill(SlotPool* pool, size_t count) {
  while (true) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (pool->set_->blocks.size() >= std::min(count, kMaxPoolBlocks)) return;
    }
    char* block = arena_->Allocate(pool->bytes_);
    if (block == nullptr) return;
    std::lock_guard<std::mutex> lock(mu_);
    if (!AddLocked(pool, block)) return arena_->Free(block);
    pool->set_->free.push_back(block);
  }
}

std::shared_ptr<SlotPool> SlotPools::Reserve(std::string_view site, size_t bytes, size_t count) {
  std::shared_ptr<SlotPool> pool;  // the last reference must be dropped without the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    SlotPool*& known = classes_[bytes].pools[std::string(site)];
    if (known != nullptr) pool = known->weak_from_this().lock();
    if (pool == nullptr) {
      pool.reset(new SlotPool(this, std::string(site), bytes));
      known = pool.get();
      EnterSetLocked(pool.get());
      ++stats_.pools;
      active_.store(true);
    }
    pool->set_->wanted = std::max(pool->set_->wanted, std::min(count, kMaxPoolBlocks));
  }
  Fill(pool.get(), ReservedBlocks(bytes, count));
  return pool;
}

// Chooses the set with the fewest pools among those that have a block or room for one.
void SlotPools::EnterSetLocked(SlotPool* pool) {
  std::list<BlockSet>& sets = classes_[pool->bytes_].sets;
  BlockSet* chosen = nullptr;
  for (BlockSet& set : sets) {
    if (set.free.empty() && set.blocks.size() >= kMaxPoolBlocks) continue;
    if (chosen == nullptr || set.pools < chosen->pools) chosen = &set;
  }
  if (chosen == nullptr) chosen = &sets.emplace_back();
  ++chosen->pools;
  pool->set_ = chosen;
}

void SlotPools::LeaveSetLocked(SlotPool* pool) {
  BlockSet* const set = std::exchange(pool->set_, nullptr);
  if (--set->pools > 0) return;
  for (char* block : set->blocks) blocks_.at(block).set = nullptr;
  for (char* block : set->free) {
    blocks_.erase(block);
    arena_->Free(block);
  }
  stats_.blocks -= set->blocks.size();
  stats_.bytes -= set->blocks.size() * pool->bytes_;
  classes_.at(pool->bytes_).sets.remove_if([set](const BlockSet& each) { return &each == set; });
}

void SlotPools::Join(SlotPool* pool, char* address) {
  std::lock_guard<std::mutex> lock(mu_);
  if (blocks_.count(address) == 0 && AddLocked(pool, address)) traced_.erase(address);
}

char* SlotPools::Allocate(std::string_view site, size_t bytes) {
  std::shared_ptr<SlotPool> empty;  // the last reference must be dropped without the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    SlotPool* pool = FindLocked(site, bytes);
    if (pool == nullptr) return nullptr;
    if (pool->set_->free.empty() && pool->set_->blocks.size() >= kMaxPoolBlocks) {
      if (pool->set_->pools == 1 || pool->moves_ == kMaxPoolMoves) return nullptr;
      ++pool->moves_;
      LeaveSetLocked(pool);
      EnterSetLocked(pool);
    }
    std::vector<char*>& free = pool->set_->free;
    if (!free.empty()) {
      char* block = free.back();
      free.pop_back();
      pool->set_->unused = std::min(pool->set_->unused, free.size());
      blocks_.at(block).site = pool->site_;
      return block;
    }
    empty = pool->weak_from_this().lock();
  }
  char* block = empty == nullptr ? nullptr : arena_->Allocate(bytes);
  if (block == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  AddLocked(empty.get(), block);  // if the set is full, it stays an ordinary block of the arena
  return block;
}

SlotPool* SlotPools::FindLocked(std::string_view site, size_t bytes) const {
  const auto same = classes_.find(bytes);
  if (same == classes_.end()) return nullptr;
  const auto found = same->second.pools.find(site);
  return found == same->second.pools.end() ? nullptr : found->second;
}

bool SlotPools::Free(char* address) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!traced_.empty()) traced_.erase(address);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  if (found->second.set != nullptr) {
    found->second.set->free.push_back(address);
  } else {
    blocks_.erase(found);
    arena_->Free(address);
  }
  return true;
}

void SlotPools::ReleaseUnused() {
  std::lock_guard<std::mutex> lock(mu_);
  ReleaseUnusedLocked(kReservedBytes);
}

void SlotPools::ReleaseFree() {
  std::lock_guard<std::mutex> lock(mu_);
  for (auto& [bytes, same] : classes_) {
    for (BlockSet& set : same.sets) set.unused = set.free.size();
  }
  ReleaseUnusedLocked(0);
}

// Only of blocks larger than `above`. The blocks at the bottom of a stack are those that have been
// free for longest.
void SlotPools::ReleaseUnusedLocked(size_t above) {
  for (auto& [bytes, same] : classes_) {
    if (bytes <= above) continue;
    for (BlockSet& set : same.sets) {
      for (size_t i = 0; i < set.unused; ++i) {
        char* block = set.free[i];
        set.blocks.erase(std::find(set.blocks.begin(), set.blocks.end(), block));
        blocks_.erase(block);
        arena_->Free(block);
      }
      stats_.blocks -= set.unused;
      stats_.bytes -= set.unused * bytes;
      set.free.erase(set.free.begin(), set.free.begin() + static_cast<ptrdiff_t>(set.unused));
      set.unused = set.free.size();
    }
  }
}

void SlotPools::Retire(SlotPool* pool) {
  std::lock_guard<std::mutex> lock(mu_);
  LeaveSetLocked(pool);
  --stats_.pools;
  SizeClass& same = classes_.at(pool->bytes_);
  // A new pool may already have the same name.
  const auto named = same.pools.find(pool->site_);
  if (named != same.pools.end() && named->second == pool) same.pools.erase(named);
  if (same.pools.empty() && same.sets.empty()) classes_.erase(pool->bytes_);
}

void SlotPools::Trace(char* address, std::string_view site, size_t bytes) {
  tracing_.fetch_sub(1, std::memory_order_relaxed);
  if (site.empty()) return;
  std::lock_guard<std::mutex> lock(mu_);
  traced_[address] = {std::string(site), bytes};
}

bool SlotPools::SiteOf(const char* address, std::string* site, size_t* bytes) const {
  std::lock_guard<std::mutex> lock(mu_);
  const auto block = blocks_.find(const_cast<char*>(address));
  if (block != blocks_.end() && block->second.set != nullptr) {
    *site = block->second.site;
    *bytes = block->second.bytes;
    return true;
  }
  const auto found = traced_.find(address);
  if (found == traced_.end()) return false;
  *site = found->second.site;
  *bytes = found->second.bytes;
  return true;
}

uint64_t SlotPools::PromisedBytes() const {
  std::lock_guard<std::mutex> lock(mu_);
  uint64_t promised = 0;
  for (const auto& [bytes, same] : classes_) {
    for (const BlockSet& set : same.sets) {
      promised += bytes * std::max(set.blocks.size(), set.wanted);
    }
  }
  return promised;
}

SlotPoolStats SlotPools::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

}  // namespace rdma_transport::memory
