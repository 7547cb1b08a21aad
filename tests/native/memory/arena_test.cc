#include "memory/arena.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "arena_fixture.h"
#include "base/log.h"

namespace rdma_transport::memory {
namespace {

using testing::ArenaTest;
using testing::SlowArenaTest;

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

// Before a slab is returned: the first who learns of it can still read it.
TEST_F(ArenaTest, EachSlabThatIsReturnedIsReportedOnce) {
  std::map<uint64_t, uint64_t> slabs;  // lengths by key
  Arena arena(device_.get(), uint64_t{160} << 20);
  int released = 0;
  arena.SetPrepare([&](fabric::Region* slab) {
    EXPECT_TRUE(slabs.emplace(slab->key(), slab->length()).second);
    return OkStatus();
  });
  arena.SetReleased([&](const fabric::Region& slab) {
    ++released;
    fabric::RemoteSpan span;
    EXPECT_TRUE(device_->Locate(slab.address(), &span));
    EXPECT_EQ(span.key, slab.key());
    EXPECT_EQ(slabs[slab.key()], slab.length());
    EXPECT_EQ(slabs.erase(slab.key()), 1u);
  });
  char* small = arena.Allocate(100000);
  char* large = arena.Allocate(64 << 20);
  EXPECT_EQ(slabs.size(), 2u);
  arena.Free(large);
  arena.ReleaseUnused();  // from now on it is unused
  EXPECT_EQ(released, 0);
  arena.ReleaseUnused();
  EXPECT_EQ(released, 1);
  // There is room for this one only without the other slab, which is in use.
  large = arena.Allocate(100 << 20);
  EXPECT_EQ(arena.Allocate(64 << 20), nullptr);
  EXPECT_EQ(released, 1);
  arena.Free(large);
  large = arena.Allocate(120 << 20);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(released, 2);
  arena.Free(small);
  arena.ReleaseEmptySlabsIfIdle();
  EXPECT_EQ(released, 3);
  arena.Free(large);
  arena.ReleaseEmptySlabsIfIdle();
  EXPECT_EQ(released, 4);
  EXPECT_TRUE(slabs.empty());
  EXPECT_EQ(arena.Stats().slabs, 0u);
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

TEST_F(SlowArenaTest, WhoNeedsMoreMemoryKeepsNobodyFromWhatIsThere) {
  char* block = arena_->Allocate(100000);
  Meanwhile(
      [&] {
        char* large = arena_->Allocate(30 << 20);
        EXPECT_NE(large, nullptr);
        arena_->Free(large);
      },
      [&] {
        arena_->Free(block);
        char* another = arena_->Allocate(100000);
        EXPECT_NE(another, nullptr);
        EXPECT_GT(arena_->Stats().used_bytes, 0u);
        arena_->Free(another);
      });
  EXPECT_EQ(arena_->Stats().used_bytes, 0u);
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
