#include "memory/slot_pools.h"

#include <algorithm>
#include <utility>

#include "memory/slot_policy.h"

namespace rdma_transport::memory {

SlotPool::~SlotPool() { owner_->Retire(this); }

std::vector<char*> SlotPool::Blocks() const {
  std::lock_guard<std::mutex> lock(owner_->mu_);
  return blocks_;
}

// Returns false if the pool is full.
bool SlotPools::AddLocked(SlotPool* pool, char* block) {
  if (pool->blocks_.size() >= kMaxPoolBlocks) return false;
  pool->blocks_.push_back(block);
  blocks_[block] = pool;
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
      if (pool->blocks_.size() >= std::min(count, kMaxPoolBlocks)) return;
    }
    char* block = arena_->Allocate(pool->bytes_);
    if (block == nullptr) return;
    std::lock_guard<std::mutex> lock(mu_);
    if (!AddLocked(pool, block)) return arena_->Free(block);
    pool->free_.push_back(block);
  }
}

std::shared_ptr<SlotPool> SlotPools::Reserve(std::string_view site, size_t bytes, size_t count) {
  std::shared_ptr<SlotPool> pool;  // the last reference must be dropped without the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    std::weak_ptr<SlotPool>& known = pools_[{bytes, std::string(site)}];
    pool = known.lock();
    if (pool == nullptr) {
      pool.reset(new SlotPool(this, std::string(site), bytes));
      known = pool;
      by_bytes_[bytes].push_back(pool.get());
      ++stats_.pools;
      active_.store(true);
    }
  }
  Fill(pool.get(), count);
  return pool;
}

void SlotPools::Join(SlotPool* pool, char* address) {
  std::lock_guard<std::mutex> lock(mu_);
  if (pool->blocks_.size() >= kMaxPoolBlocks || !blocks_.emplace(address, pool).second) return;
  pool->blocks_.push_back(address);
  traced_.erase(address);
  ++stats_.blocks;
  stats_.bytes += pool->bytes_;
}

char* SlotPools::Allocate(std::string_view site, size_t bytes) {
  std::shared_ptr<SlotPool> empty;  // the last reference must be dropped without the lock
  {
    std::lock_guard<std::mutex> lock(mu_);
    SlotPool* pool = FindLocked(site, bytes);
    if (pool == nullptr) return nullptr;
    if (!pool->free_.empty()) {
      // The block freed last is most likely in the cache.
      char* block = pool->free_.back();
      pool->free_.pop_back();
      return block;
    }
    if (pool->blocks_.size() >= kMaxPoolBlocks) return nullptr;
    empty = pool->weak_from_this().lock();
  }
  char* block = empty == nullptr ? nullptr : arena_->Allocate(bytes);
  if (block == nullptr) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  AddLocked(empty.get(), block);  // if the pool is full, it stays an ordinary block of the arena
  return block;
}

SlotPool* SlotPools::FindLocked(std::string_view site, size_t bytes) const {
  const auto same = by_bytes_.find(bytes);
  if (same == by_bytes_.end()) return nullptr;
  const auto found = std::find_if(same->second.begin(), same->second.end(),
                                  [&](const SlotPool* pool) { return pool->site_ == site; });
  return found == same->second.end() ? nullptr : *found;
}

bool SlotPools::Free(char* address) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!traced_.empty()) traced_.erase(address);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  if (found->second != nullptr) {
    found->second->free_.push_back(address);
  } else {
    blocks_.erase(found);
    arena_->Free(address);
  }
  return true;
}

void SlotPools::Retire(SlotPool* pool) {
  std::lock_guard<std::mutex> lock(mu_);
  auto& same = by_bytes_[pool->bytes_];
  same.erase(std::remove(same.begin(), same.end(), pool), same.end());
  if (same.empty()) by_bytes_.erase(pool->bytes_);
  // A new pool may already have the same name.
  const auto named = pools_.find({pool->bytes_, pool->site_});
  if (named != pools_.end() && named->second.expired()) pools_.erase(named);
  for (char* block : pool->blocks_) blocks_[block] = nullptr;
  for (char* block : pool->free_) {
    blocks_.erase(block);
    arena_->Free(block);
  }
  --stats_.pools;
  stats_.blocks -= pool->blocks_.size();
  stats_.bytes -= pool->blocks_.size() * pool->bytes_;
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
  if (block != blocks_.end() && block->second != nullptr) {
    *site = block->second->site_;
    *bytes = block->second->bytes_;
    return true;
  }
  const auto found = traced_.find(address);
  if (found == traced_.end()) return false;
  *site = found->second.site;
  *bytes = found->second.bytes;
  return true;
}

SlotPoolStats SlotPools::Stats() const {
  std::lock_guard<std::mutex> lock(mu_);
  return stats_;
}

}  // namespace rdma_transport::memory
