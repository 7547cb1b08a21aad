#include "memory/trimmer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "arena_fixture.h"
#include "memory/slot_policy.h"

namespace rdma_transport::memory {
namespace {

constexpr size_t kLarge = size_t{64} << 20;
constexpr size_t kSmall = 10'000;

class TrimmerTest : public testing::ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    arena_ = std::make_unique<Arena>(device_.get(), size_t{512} << 20);
    receive_arena_ = std::make_unique<Arena>(device_.get(), size_t{512} << 20);
    pools_ = std::make_unique<SlotPools>(arena_.get());
    trimmer_ = std::make_unique<Trimmer>(pools_.get(), arena_.get(), receive_arena_.get(),
                                         [this] { ++woken_; });
  }

  // As if memory had been used since the last time, unless told otherwise.
  bool Tick(bool used = true) {
    if (used) trimmer_->NoteUse();
    return trimmer_->Tick(now_ += kTrimInterval, [](const Trimmer::Work& work) { work(); });
  }

  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Arena> receive_arena_;
  std::unique_ptr<SlotPools> pools_;
  std::unique_ptr<Trimmer> trimmer_;
  int woken_ = 0;
  Nanos now_ = kSecond;
};

TEST_F(TrimmerTest, LargeBlocksThatNobodyNeedsGoBackToTheSystem) {
  const auto pool = pools_->Reserve("site", kLarge, 2);
  char* blocks[3];
  for (char*& block : blocks) block = pools_->Allocate("site", kLarge);
  for (char* block : blocks) EXPECT_TRUE(pools_->Free(block));
  EXPECT_TRUE(Tick());  // all were in use since the last time
  EXPECT_EQ(pool->Blocks().size(), 3u);
  pools_->Free(pools_->Allocate("site", kLarge));
  int ran = 0;
  trimmer_->Tick(now_ + kTrimInterval - 1, [&](const Trimmer::Work&) { ++ran; });
  EXPECT_EQ(ran, 0) << "too early";
  EXPECT_TRUE(Tick());
  EXPECT_EQ(pool->Blocks(), std::vector<char*>{blocks[2]}) << "only that one is still in use";
  EXPECT_EQ(pools_->Stats().bytes, kLarge);
  EXPECT_EQ(arena_->Stats().used_bytes, kLarge);
  pools_->Free(pools_->Allocate("site", kLarge));
  EXPECT_TRUE(Tick());
  EXPECT_EQ(arena_->Stats().capacity_bytes, kLarge) << "the empty slabs";
  char* used = pools_->Allocate("site", kLarge);
  EXPECT_EQ(used, blocks[2]);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Tick());
  std::memset(used, 1, kLarge);
  EXPECT_TRUE(pools_->Free(used));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Tick());
  EXPECT_TRUE(pool->Blocks().empty());
  EXPECT_EQ(arena_->Stats().capacity_bytes, 0u);
  char* again = pools_->Allocate("site", kLarge);
  EXPECT_NE(again, nullptr);
  EXPECT_TRUE(pools_->Free(again));
}

TEST_F(TrimmerTest, AnIdleProcessGivesBackAllThatIsEmptyAndIsLeftAlone) {
  for (Arena* arena : {arena_.get(), receive_arena_.get()}) {
    arena->Free(arena->Allocate(kSmall));
    arena->Free(arena->Allocate(kLarge));
    EXPECT_GT(arena->Stats().capacity_bytes, kLarge);
  }
  char* kept = arena_->Allocate(kSmall);
  trimmer_->NoteUse();
  trimmer_->NoteUse();
  EXPECT_EQ(woken_, 1);
  int ticks = 0;
  while (Tick(/*used=*/false)) ASSERT_LT(++ticks, 10);
  EXPECT_EQ(receive_arena_->Stats().capacity_bytes, 0u);
  EXPECT_LT(arena_->Stats().capacity_bytes, kLarge);
  EXPECT_FALSE(Tick(/*used=*/false));
  arena_->Free(kept);
  trimmer_->NoteUse();
  EXPECT_EQ(woken_, 2) << "it is called again";
  while (Tick(/*used=*/false)) ASSERT_LT(++ticks, 20);
  EXPECT_EQ(arena_->Stats().capacity_bytes, 0u);
}

TEST_F(TrimmerTest, WorkThatRunsTooLateDoesNothing) {
  trimmer_->NoteUse();
  Trimmer::Work late;
  EXPECT_TRUE(trimmer_->Tick(now_, [&](Trimmer::Work work) { late = std::move(work); }));
  trimmer_.reset();
  pools_.reset();
  arena_.reset();
  late();
}

}  // namespace
}  // namespace rdma_transport::memory
