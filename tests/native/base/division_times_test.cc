// Which way of running work is chosen, by the times of those before.
#include "base/division_times.h"

#include <gtest/gtest.h>

#include <memory>

namespace rdma_transport {
namespace {

class DivisionTimesTest : public testing::Test {
 protected:
  // Runs work that takes so long in either way, and returns how often it was divided.
  int Run(int times, Nanos divided, Nanos whole) {
    int count = 0;
    for (int i = 0; i < times; ++i) {
      const DivisionTimes::Choice choice = times_->Choose(&work_, 0);
      times_->Record(&work_, 0, choice.divided, choice.divided ? divided : whole);
      count += choice.divided;
    }
    return count;
  }

  const std::unique_ptr<DivisionTimes> times_ = std::make_unique<DivisionTimes>();
  const int work_ = 0;
};

TEST_F(DivisionTimesTest, TriesBothWays) {
  DivisionTimes::Choice choice = times_->Choose(&work_, 100);
  EXPECT_TRUE(choice.divided);
  EXPECT_EQ(choice.expected, DivisionTimes::kUnknown);
  times_->Record(&work_, 100, /*divided=*/true, 40 * kMicrosecond);
  choice = times_->Choose(&work_, 100);
  EXPECT_FALSE(choice.divided);
  EXPECT_EQ(choice.expected, DivisionTimes::kUnknown);
  times_->Record(&work_, 100, /*divided=*/false, 20 * kMicrosecond);
  EXPECT_NE(times_->Choose(&work_, 100).expected, DivisionTimes::kUnknown);
  EXPECT_EQ(times_->ExpectedDivided(&work_, 100), 40 * kMicrosecond);
}

TEST_F(DivisionTimesTest, LargerInputsAreUnknown) {
  times_->Record(&work_, 100, /*divided=*/true, 40 * kMicrosecond);
  times_->Record(&work_, 100, /*divided=*/false, 20 * kMicrosecond);
  const DivisionTimes::Choice choice = times_->Choose(&work_, 101);
  EXPECT_TRUE(choice.divided);
  EXPECT_EQ(choice.expected, DivisionTimes::kUnknown);
}

TEST_F(DivisionTimesTest, RunsOnOneThreadWhereThatIsFaster) {
  EXPECT_LT(Run(1000, 40 * kMicrosecond, 20 * kMicrosecond), 100);
}

TEST_F(DivisionTimesTest, DividesWhereThatIsFaster) {
  EXPECT_GT(Run(1000, 15 * kMicrosecond, 20 * kMicrosecond), 900);
}

// Trying the slower way takes a small part of the time, however slow it is.
TEST_F(DivisionTimesTest, SeldomTriesWhatIsMuchSlower) {
  constexpr int kTimes = 20000;
  const int undivided = kTimes - Run(kTimes, 20 * kMicrosecond, 40 * 20 * kMicrosecond);
  EXPECT_GT(undivided, 1);
  EXPECT_LT(undivided, kTimes / 400);
}

TEST_F(DivisionTimesTest, FollowsChanges) {
  Run(1000, 20 * kMicrosecond, 90 * kMicrosecond);
  EXPECT_LT(Run(10000, 20 * kMicrosecond, 12 * kMicrosecond), 5000);
}

TEST_F(DivisionTimesTest, DividesShortWork) {
  EXPECT_EQ(Run(1000, 5 * kMicrosecond, kMicrosecond), 1000);
}

TEST_F(DivisionTimesTest, DividesLongWork) {
  EXPECT_EQ(Run(1000, 500 * kMicrosecond, kMicrosecond), 1000);
}

}  // namespace
}  // namespace rdma_transport
