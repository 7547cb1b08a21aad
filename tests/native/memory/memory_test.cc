#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "base/log.h"
#include "fabric/registry.h"
#include "forwarding_device.h"
#include "memory/arena.h"
#include "memory/extent_allocator.h"
#include "memory/slot_policy.h"
#include "memory/slot_pools.h"

namespace rdma_transport::memory {
namespace {

TEST(ExtentAllocator, RandomUseNeverOverlapsAndAllComesBack) {
  constexpr size_t kLength = 1 << 20;
  std::vector<char> space(kLength + 64);
  char* base = space.data() + (64 - reinterpret_cast<uintptr_t>(space.data()) % 64);
  ExtentAllocator allocator;
  allocator.AddRange(base, kLength);
  std::map<char*, size_t> live;
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    if (live.empty() || random() % 2 == 0) {
      const size_t length = 1 + random() % 9000;
      char* block = allocator.Allocate(length);
      if (block == nullptr) continue;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block) % ExtentAllocator::kAlignment, 0u);
      ASSERT_GE(block, base);
      ASSERT_LE(block + length, base + kLength);
      const auto next = live.lower_bound(block);
      if (next != live.end()) {
        ASSERT_LE(block + length, next->first);
      }
      if (next != live.begin()) {
        const auto previous = std::prev(next);
        ASSERT_LE(previous->first + previous->second, block);
      }
      live[block] = length;
    } else {
      auto victim = live.begin();
      std::advance(victim, random() % live.size());
      ASSERT_GE(allocator.Free(victim->first), victim->second);
      live.erase(victim);
    }
  }
  EXPECT_FALSE(live.empty() || allocator.RemoveRange(base));
  for (const auto& [block, length] : live) ASSERT_NE(allocator.Free(block), 0u);
  EXPECT_EQ(allocator.Free(base + 64), 0u);
  EXPECT_EQ(allocator.Allocate(kLength), base);
  EXPECT_EQ(allocator.Free(base), kLength);
  EXPECT_TRUE(allocator.RemoveRange(base));
}

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Settings settings;
    settings.fabric = "shm";
    ASSERT_TRUE(fabric::OpenDevice(settings, &device_).ok());
  }
  std::unique_ptr<fabric::Device> device_;
};

TEST_F(ArenaTest, GrowsToItsLimitAndNotBeyond) {
  Arena arena(device_.get(), uint64_t{16} << 20);
  EXPECT_EQ(arena.Stats().capacity_bytes, 0u);
  char* first = arena.Allocate(9 << 20);
  ASSERT_NE(first, nullptr);
  EXPECT_TRUE(arena.Contains(first));
  EXPECT_EQ(arena.Allocate(9 << 20), nullptr);
  EXPECT_EQ(arena.Stats().refused, 1u);
  arena.Free(first);
  // The empty slab makes room for one of another size.
  char* second = arena.Allocate(15 << 20);
  EXPECT_NE(second, nullptr);
  arena.Free(second);
  EXPECT_EQ(arena.Stats().used_bytes, 0u);
}

TEST_F(ArenaTest, TwoArenasOfOneBudgetTakeNoMoreThanThat) {
  const auto budget = std::make_shared<Budget>(uint64_t{64} << 20);
  Arena tensors(device_.get(), budget);
  Arena slots(device_.get(), budget, fabric::Access::kRemoteReadWrite, 0.5);
  tensors.SetNeighbor(&slots);
  slots.SetNeighbor(&tensors);
  char* large = tensors.Allocate(40 << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(slots.Allocate(40 << 20), nullptr);
  char* small = slots.Allocate(20 << 20);
  ASSERT_NE(small, nullptr);
  // What one does not use any more the other one gets.
  slots.Free(small);
  char* second = tensors.Allocate(20 << 20);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(slots.Allocate(20 << 20), nullptr);
  tensors.Free(second);
  tensors.Free(large);
  EXPECT_EQ(slots.Allocate(40 << 20), nullptr) << "more than half";
  // As when other tasks get their share.
  budget->SetLimit(uint64_t{32} << 20);
  EXPECT_EQ(tensors.Stats().limit_bytes, uint64_t{32} << 20);
  EXPECT_EQ(tensors.Allocate(40 << 20), nullptr);
  small = tensors.Allocate(20 << 20);
  EXPECT_NE(small, nullptr);
  tensors.Free(small);
}

TEST_F(ArenaTest, ALimitOnFileSizesIsAnErrorAndNotASignal) {
  Arena arena(device_.get(), uint64_t{64} << 20);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  SetLogLevel(LogLevel::kOff);
  EXPECT_EQ(arena.Allocate(100000), nullptr);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  char* block = arena.Allocate(100000);
  EXPECT_NE(block, nullptr);
  arena.Free(block);
}

TEST_F(ArenaTest, WhatItHandsOutIsInARegionOfTheDevice) {
  Arena arena(device_.get(), uint64_t{64} << 20);
  char* block = arena.Allocate(100000);
  fabric::RemoteSpan span;
  ASSERT_TRUE(device_->Locate(block + 99999, &span));
  EXPECT_GE(span.length, 1u);
  EXPECT_FALSE(device_->Locate(&span, &span));
  arena.Free(block);
}

TEST_F(ArenaTest, AnArenaThatHoldsNothingYetContainsNothing) {
  const Arena arena(device_.get(), 64 << 20);
  EXPECT_FALSE(arena.Contains(nullptr));
  EXPECT_FALSE(arena.Contains(&arena));
}

TEST_F(ArenaTest, APoolHandsOutTheSameFewBlocksForItsSite) {
  Arena arena(device_.get(), 64 << 20);
  SlotPools pools(&arena);
  EXPECT_EQ(pools.Allocate("site", 9000), nullptr);
  {
    const auto pool = pools.Reserve("site", 9000, 2);
    const std::vector<char*> blocks = pool->Blocks();
    ASSERT_EQ(blocks.size(), 2u);
    EXPECT_EQ(pools.Allocate("other site", 9000), nullptr);
    EXPECT_EQ(pools.Allocate("site", 9001), nullptr);
    for (int i = 0; i < 10; ++i) {
      char* block = pools.Allocate("site", 9000);
      EXPECT_TRUE(block == blocks[0] || block == blocks[1]);
      EXPECT_TRUE(pools.Free(block));
    }
    char* first = pools.Allocate("site", 9000);
    char* second = pools.Allocate("site", 9000);
    char* third = pools.Allocate("site", 9000);  // it grows
    EXPECT_EQ(pool->Blocks().size(), 3u);
    for (char* block : {first, second, third}) EXPECT_TRUE(pools.Free(block));
    EXPECT_FALSE(pools.Free(arena.Allocate(100)));
  }
  EXPECT_EQ(pools.Stats().blocks, 0u);
  EXPECT_EQ(arena.Stats().used_bytes, 128u) << "only what is not the pool's";
}

TEST_F(ArenaTest, SitesOfTheSameSizeTakeTurnsInTheSameBlocks) {
  Arena arena(device_.get(), 64 << 20);
  SlotPools pools(&arena);
  std::vector<std::shared_ptr<SlotPool>> sites;
  for (int i = 0; i < 100; ++i) {
    sites.push_back(pools.Reserve("site " + std::to_string(i), 9000, kSlots));
  }
  char* const warm = pools.Allocate("site 0", 9000);
  pools.Free(warm);
  for (const auto& site : sites) {
    char* block = pools.Allocate(site->site(), 9000);
    EXPECT_EQ(block, warm) << "the block freed last";
    std::string found;
    size_t bytes = 0;
    EXPECT_TRUE(pools.SiteOf(block, &found, &bytes));
    EXPECT_EQ(found, site->site());
    EXPECT_EQ(bytes, 9000u);
    pools.Free(block);
  }
  EXPECT_EQ(pools.Stats().blocks, kSlots);
  sites.clear();
  EXPECT_EQ(pools.Stats().blocks, 0u);
  EXPECT_EQ(arena.Stats().used_bytes, 0u);
}

// As gradients are, which wait for each other.
TEST_F(ArenaTest, SitesWhoseBuffersAreInUseTogetherKeepToAFewAddresses) {
  Arena arena(device_.get(), 64 << 20);
  SlotPools pools(&arena);
  constexpr size_t kSites = 100;
  std::vector<std::shared_ptr<SlotPool>> sites;
  for (size_t i = 0; i < kSites; ++i) {
    sites.push_back(pools.Reserve("site " + std::to_string(i), 9000, kSlots));
  }
  std::mt19937 random(1);
  uint64_t settled = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<char*> used;
    std::shuffle(sites.begin(), sites.end(), random);
    for (const auto& site : sites) {
      char* block = pools.Allocate(site->site(), 9000);
      if (block == nullptr) continue;  // the arena's turn
      const std::vector<char*> known = site->Blocks();
      EXPECT_EQ(std::count(known.begin(), known.end(), block), 1);
      EXPECT_LE(known.size(), kMaxPoolBlocks);
      used.push_back(block);
    }
    EXPECT_EQ(std::set<char*>(used.begin(), used.end()).size(), used.size());
    for (char* block : used) EXPECT_TRUE(pools.Free(block));
    if (step == 9) settled = pools.Stats().blocks_ever;
  }
  EXPECT_EQ(pools.Stats().blocks_ever, settled) << "nothing is allocated after the first steps";
  EXPECT_LE(pools.Stats().blocks, 2 * kSites);
}

TEST_F(ArenaTest, ABlockThatOutlivesItsPoolGoesBackToTheArena) {
  Arena arena(device_.get(), 64 << 20);
  SlotPools pools(&arena);
  auto pool = pools.Reserve("site", 9000, 1);
  char* inside = pools.Allocate("site", 9000);
  char* joined = arena.Allocate(9000);
  pools.Join(pool.get(), joined);
  pool.reset();
  EXPECT_TRUE(pools.Free(inside));
  EXPECT_TRUE(pools.Free(joined));
  EXPECT_EQ(arena.Stats().used_bytes, 0u);
}

TEST_F(ArenaTest, ALargeBlockIsTakenWhenItIsNeeded) {
  Arena arena(device_.get(), 256 << 20);
  SlotPools pools(&arena);
  const auto small = pools.Reserve("small", kReservedBytes / 2, 4);
  EXPECT_EQ(small->Blocks().size(), 2u);
  const auto large = pools.Reserve("large", kReservedBytes + 1, 4);
  EXPECT_TRUE(large->Blocks().empty());
  EXPECT_EQ(pools.PromisedBytes(), 4 * (kReservedBytes / 2 + kReservedBytes + 1));
  for (int step = 0; step < 5; ++step) {
    char* block = pools.Allocate("large", kReservedBytes + 1);
    ASSERT_NE(block, nullptr);
    EXPECT_TRUE(pools.Free(block));
  }
  EXPECT_EQ(large->Blocks().size(), 1u);
}

TEST_F(ArenaTest, LargeBlocksThatNobodyNeedsGoBackToTheSystem) {
  constexpr size_t kLarge = size_t{64} << 20;
  Arena arena(device_.get(), size_t{512} << 20);
  SlotPools pools(&arena);
  const auto pool = pools.Reserve("site", kLarge, 2);
  Nanos now = kSecond;
  pools.Trim(now);
  char* blocks[3];
  for (char*& block : blocks) block = pools.Allocate("site", kLarge);
  for (char* block : blocks) EXPECT_TRUE(pools.Free(block));
  pools.Trim(now += kTrimInterval);  // all were in use since the last time
  EXPECT_EQ(pool->Blocks().size(), 3u);
  pools.Free(pools.Allocate("site", kLarge));
  pools.Trim(now + kTrimInterval - 1);  // too early
  EXPECT_EQ(pool->Blocks().size(), 3u);
  pools.Trim(now += kTrimInterval);
  EXPECT_EQ(pool->Blocks(), std::vector<char*>{blocks[2]}) << "only that one is still in use";
  EXPECT_EQ(pools.Stats().bytes, kLarge);
  EXPECT_EQ(arena.Stats().used_bytes, kLarge);
  pools.Free(pools.Allocate("site", kLarge));
  pools.Trim(now += kTrimInterval);
  EXPECT_EQ(arena.Stats().capacity_bytes, kLarge) << "the empty slabs";
  char* used = pools.Allocate("site", kLarge);
  EXPECT_EQ(used, blocks[2]);
  for (int i = 0; i < 3; ++i) pools.Trim(now += kTrimInterval);
  std::memset(used, 1, kLarge);
  EXPECT_TRUE(pools.Free(used));
  for (int i = 0; i < 3; ++i) pools.Trim(now += kTrimInterval);
  EXPECT_TRUE(pool->Blocks().empty());
  EXPECT_EQ(arena.Stats().capacity_bytes, 0u);
  char* again = pools.Allocate("site", kLarge);
  EXPECT_NE(again, nullptr);
  EXPECT_TRUE(pools.Free(again));
}

TEST_F(ArenaTest, FreeBlocksOfAPoolMakeRoomForOthers) {
  constexpr size_t kLarge = size_t{64} << 20;
  Arena arena(device_.get(), 2 * kLarge);
  SlotPools pools(&arena);
  const auto pool = pools.Reserve("site", kLarge, 2);
  char* first = pools.Allocate("site", kLarge);
  char* second = pools.Allocate("site", kLarge);
  EXPECT_TRUE(pools.Free(second));
  char* other = arena.Allocate(kLarge - 1);
  EXPECT_NE(other, nullptr);
  EXPECT_EQ(pool->Blocks(), std::vector<char*>{first});
  EXPECT_EQ(pools.Allocate("site", kLarge), nullptr) << "both are in use";
  arena.Free(other);
  EXPECT_TRUE(pools.Free(first));
}

// Otherwise a large tensor would make the next small one take 256 MiB.
TEST_F(ArenaTest, ALargeTensorDoesNotEnlargeTheSlabsOfSmallOnes) {
  Arena arena(device_.get(), size_t{1} << 30);
  char* large = arena.Allocate(size_t{128} << 20);
  EXPECT_EQ(arena.Stats().capacity_bytes, size_t{128} << 20);
  char* small = arena.Allocate(9000);
  EXPECT_LE(arena.Stats().capacity_bytes, size_t{136} << 20);
  arena.Free(small);
  arena.Free(large);
}

TEST_F(ArenaTest, ThreadsDoNotDisturbEachOther) {
  Arena arena(device_.get(), uint64_t{64} << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&arena, t] {
      for (int i = 0; i < 300; ++i) {
        const size_t length = 64 + (i * 977 + t) % 60000;
        char* block = arena.Allocate(length);
        ASSERT_NE(block, nullptr);
        std::memset(block, t, length);
        for (size_t at = 0; at < length; at += 61) ASSERT_EQ(block[at], t);
        arena.Free(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(arena.Stats().used_bytes, 0u);
}

// A device whose memory takes as long to come as the test wants.
class SlowDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override {
    std::unique_lock<std::mutex> lock(mu_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    lock.unlock();
    return ForwardingDevice::Allocate(length, access, place, region);
  }
  void SetOpen(bool open) {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = open;
    changed_.notify_all();
  }
  void AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return waiting_ > 0; }));
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

class SlowArenaTest : public ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    slow_ = std::make_unique<SlowDevice>(std::move(device_));
    arena_ = std::make_unique<Arena>(slow_.get(), uint64_t{256} << 20);
    pools_ = std::make_unique<SlotPools>(arena_.get());
  }
  // While `grow` waits for memory, `rest` must be done with.
  void Meanwhile(const std::function<void()>& grow, const std::function<void()>& rest) {
    slow_->SetOpen(false);
    auto growing = std::async(std::launch::async, grow);
    slow_->AwaitSomebody();
    auto resting = std::async(std::launch::async, rest);
    EXPECT_EQ(resting.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    slow_->SetOpen(true);
    growing.get();
    resting.get();
  }
  void UseWhatIsThere(char* block) {
    arena_->Free(block);
    char* another = arena_->Allocate(100000);
    EXPECT_NE(another, nullptr);
    EXPECT_GT(arena_->Stats().used_bytes, 0u);
    arena_->Free(another);
  }

  std::unique_ptr<SlowDevice> slow_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<SlotPools> pools_;
};

TEST_F(SlowArenaTest, WhoNeedsMoreMemoryKeepsNobodyFromWhatIsThere) {
  char* block = arena_->Allocate(100000);
  Meanwhile(
      [&] {
        char* large = arena_->Allocate(30 << 20);
        EXPECT_NE(large, nullptr);
        arena_->Free(large);
      },
      [&] { UseWhatIsThere(block); });
  EXPECT_EQ(arena_->Stats().used_bytes, 0u);
}

TEST_F(SlowArenaTest, APoolThatGrowsKeepsNobodyFromItsBlocks) {
  const auto pool = pools_->Reserve("site", 100000, 1);
  char* used = pools_->Allocate("site", 100000);
  Meanwhile([&] { EXPECT_NE(pools_->Reserve("large", 10 << 20, 1), nullptr); },
            [&] {
              EXPECT_TRUE(pools_->Free(used));
              used = pools_->Allocate("site", 100000);
            });
  EXPECT_TRUE(pools_->Free(used));
  const auto large = pools_->Reserve("large", 10 << 20, 1);
  char* first = pools_->Allocate("large", 10 << 20);
  Meanwhile([&] { EXPECT_TRUE(pools_->Free(pools_->Allocate("large", 10 << 20))); },
            [&] { EXPECT_TRUE(pools_->Free(first)); });
  EXPECT_EQ(large->Blocks().size(), 2u);
}

// Slabs are taken and given back, over and over.
TEST_F(SlowArenaTest, ThreadsThatGrowAtTheSameTimeShareTheLimit) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 10; ++i) {
        const size_t length = (t + 1) * (i % 3 + 1) * (size_t{9} << 20);
        char* block = arena_->Allocate(length);
        if (block != nullptr) arena_->Free(block);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const ArenaStats stats = arena_->Stats();
  EXPECT_EQ(stats.used_bytes, 0u);
  EXPECT_LE(stats.capacity_bytes, stats.limit_bytes);
}

}  // namespace
}  // namespace rdma_transport::memory
