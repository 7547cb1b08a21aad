#include "memory/extent_allocator.h"

#include <gtest/gtest.h>

#include <iterator>
#include <map>
#include <random>
#include <vector>

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

}  // namespace
}  // namespace rdma_transport::memory
