#include "memory/slot_pools.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "arena_fixture.h"
#include "memory/slot_policy.h"

namespace rdma_transport::memory {
namespace {

using SlotPoolsTest = testing::ArenaTest;
using SlowSlotPoolsTest = testing::SlowArenaTest;

TEST_F(SlotPoolsTest, APoolHandsOutTheSameFewBlocksForItsSite) {
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

TEST_F(SlotPoolsTest, SitesOfTheSameSizeTakeTurnsInTheSameBlocks) {
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
TEST_F(SlotPoolsTest, SitesWhoseBuffersAreInUseTogetherKeepToAFewAddresses) {
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

TEST_F(SlotPoolsTest, ABlockThatOutlivesItsPoolGoesBackToTheArena) {
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

TEST_F(SlotPoolsTest, ALargeBlockIsTakenWhenItIsNeeded) {
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

TEST_F(SlotPoolsTest, FreeBlocksOfAPoolMakeRoomForOthers) {
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

TEST_F(SlowSlotPoolsTest, APoolThatGrowsKeepsNobodyFromItsBlocks) {
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

}  // namespace
}  // namespace rdma_transport::memory
