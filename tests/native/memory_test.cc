#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "base/log.h"
#include "fabric/registry.h"
#include "memory/arena.h"
#include "memory/extent_allocator.h"
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
    settings.fabric = FabricChoice::kShm;
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

}  // namespace
}  // namespace rdma_transport::memory
