#include "analyzer/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "analyzer/packing.h"

namespace rdma_transport::analyzer {
namespace {

bool Overlaps(const std::vector<Operation>& operations, const Lifetime& a, const Lifetime& b) {
  return Overlap(operations, {a, b})(0, 1);
}

TEST(Overlap, ABufferIsOverBeforeOneThatComesAfterAllOfItsUses) {
  // 0 -> 1 -> 2 -> 3, and 0 -> 4
  const std::vector<Operation> operations = {{}, {{0}, {}}, {{1}, {}}, {{2}, {}}, {{0}, {}}};
  EXPECT_FALSE(Overlaps(operations, {0, {1}}, {2, {3}}));
  EXPECT_FALSE(Overlaps(operations, {2, {3}}, {0, {1}}));
  EXPECT_TRUE(Overlaps(operations, {0, {1}}, {1, {2}})) << "1 reads one and writes the other";
  EXPECT_TRUE(Overlaps(operations, {0, {1, 4}}, {2, {3}})) << "4 may run last";
  EXPECT_TRUE(Overlaps(operations, {0, {1}, true}, {2, {3}}));
  EXPECT_TRUE(Overlaps(operations, {0, {1}}, {2, {3}, true}));
  EXPECT_TRUE(Overlaps(operations, {0, {}}, {2, {3}})) << "its end is not known";
}

TEST(Overlap, AMergeDoesNotWaitForAllItsInputs) {
  // 0 -> 1 and 0 -> 2, which meet in 3
  const std::vector<Operation> operations = {{}, {{0}, {}}, {{0}, {}}, {{}, {1, 2}}, {{3}, {}}};
  EXPECT_TRUE(Overlaps(operations, {0, {1}}, {4, {4}}));
  EXPECT_FALSE(Overlaps(operations, {0, {0}}, {4, {4}})) << "before both branches";
  const std::vector<Operation> joined = {{}, {{0}, {}}, {{0}, {}}, {{1, 2}, {}}, {{3}, {}}};
  EXPECT_FALSE(Overlaps(joined, {0, {1}}, {4, {4}}));
}

struct World {
  std::vector<Operation> operations;
  std::vector<Lifetime> lifetimes;
  std::vector<uint64_t> sizes;
};

World RandomWorld(std::mt19937* random, size_t operations, size_t lifetimes) {
  World world;
  auto below = [random](size_t n) { return static_cast<uint32_t>((*random)() % n); };
  for (size_t i = 0; i < operations; ++i) {
    Operation& made = world.operations.emplace_back();
    if (i == 0) continue;
    auto& inputs = below(8) == 0 ? made.after_any : made.after;
    for (uint32_t n = below(4); n > 0; --n) inputs.push_back(i - 1 - below(std::min<size_t>(i, 9)));
  }
  for (size_t i = 0; i < lifetimes; ++i) {
    Lifetime& made = world.lifetimes.emplace_back();
    made.first = below(operations);
    for (uint32_t n = 1 + below(3); n > 0; --n) {
      made.last.push_back(std::min<uint32_t>(made.first + below(12), operations - 1));
    }
    made.always = below(20) == 0;
    world.sizes.push_back(64 * (1 + below(100)));
  }
  return world;
}

// Runs all operations in a random order that the graph allows. Returns when each one ran.
std::vector<size_t> RandomRun(std::mt19937* random, const std::vector<Operation>& operations) {
  std::vector<size_t> time(operations.size(), SIZE_MAX);
  std::vector<uint32_t> left(operations.size());
  for (size_t i = 0; i < left.size(); ++i) left[i] = i;
  const auto ran = [&time](uint32_t operation) { return time[operation] != SIZE_MAX; };
  for (size_t now = 0; !left.empty(); ++now) {
    std::vector<size_t> ready;
    for (size_t i = 0; i < left.size(); ++i) {
      const Operation& operation = operations[left[i]];
      const auto& any = operation.after_any;
      if (std::all_of(operation.after.begin(), operation.after.end(), ran) &&
          (any.empty() || std::any_of(any.begin(), any.end(), ran))) {
        ready.push_back(i);
      }
    }
    const size_t next = ready[(*random)() % ready.size()];
    time[left[next]] = now;
    left.erase(left.begin() + static_cast<ptrdiff_t>(next));
  }
  return time;
}

TEST(Overlap, BuffersThatShareMemoryAreNeverInUseTogetherInAnyOrder) {
  size_t sharing = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const World world = RandomWorld(&random, 60, 30);
    const Overlap overlap(world.operations, world.lifetimes);
    const std::vector<uint64_t> offsets = Pack(world.sizes, std::cref(overlap));
    for (int run = 0; run < 20; ++run) {
      const std::vector<size_t> time = RandomRun(&random, world.operations);
      const auto end = [&](const Lifetime& lifetime) {
        size_t last = lifetime.always ? SIZE_MAX : 0;
        for (const uint32_t operation : lifetime.last) last = std::max(last, time[operation]);
        return last;
      };
      for (size_t a = 0; a < world.lifetimes.size(); ++a) {
        for (size_t b = 0; b < world.lifetimes.size(); ++b) {
          const Lifetime& one = world.lifetimes[a];
          const Lifetime& other = world.lifetimes[b];
          const bool shared = a != b && offsets[a] < offsets[b] + world.sizes[b] &&
                              offsets[b] < offsets[a] + world.sizes[a];
          if (!shared) continue;
          ++sharing;
          ASSERT_FALSE(one.always || other.always) << "seed " << seed;
          ASSERT_TRUE(end(one) < time[other.first] || end(other) < time[one.first])
              << "seed " << seed << ": " << a << " and " << b;
        }
      }
    }
  }
  EXPECT_GT(sharing, 1000u);
}

TEST(Pack, TakesTheSmallestGapThatFits) {
  const std::vector<uint64_t> sizes = {100, 90, 80, 70, 60, 50};
  // 0 and 2 are over when 4 and 5 begin.
  const auto overlap = [](size_t a, size_t b) {
    return std::max(a, b) < 4 || (std::min(a, b) != 0 && std::min(a, b) != 2);
  };
  EXPECT_EQ(Pack(sizes, overlap), (std::vector<uint64_t>{0, 100, 190, 270, 190, 0}));
}

}  // namespace
}  // namespace rdma_transport::analyzer
