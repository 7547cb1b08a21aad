// The expected time of work that ran before.
#include "base/work_times.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace rdma_transport {
namespace {

TEST(WorkTimesTest, WorkThatNeverRanIsUnknown) {
  const auto times = std::make_unique<WorkTimes>();
  const int work = 0;
  EXPECT_EQ(times->Expected(&work, 0), WorkTimes::kUnknown);
}

TEST(WorkTimesTest, LargerInputsAreUnknown) {
  const auto times = std::make_unique<WorkTimes>();
  const int work = 0;
  times->Record(&work, 100, 7);
  EXPECT_EQ(times->Expected(&work, 100), 7);
  EXPECT_EQ(times->Expected(&work, 50), 7);
  EXPECT_EQ(times->Expected(&work, 101), WorkTimes::kUnknown);
  times->Record(&work, 101, 90);
  EXPECT_EQ(times->Expected(&work, 101), 90);
}

TEST(WorkTimesTest, FollowsWhatWorkTakes) {
  const auto times = std::make_unique<WorkTimes>();
  const int work = 0;
  for (int i = 0; i < 100; ++i) times->Record(&work, 0, 1000);
  times->Record(&work, 0, 101000);
  EXPECT_EQ(times->Expected(&work, 0), 26000);
  for (int i = 0; i < 100; ++i) times->Record(&work, 0, 1000);
  EXPECT_LT(times->Expected(&work, 0), 1010);
}

// More than there are entries, from several threads.
TEST(WorkTimesTest, ForgetsWorkForOtherWork) {
  const auto times = std::make_unique<WorkTimes>();
  const std::vector<int> works(100000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (const int& work : works) times->Record(&work, 0, 5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(times->Expected(&works.back(), 0), 5);
  EXPECT_EQ(times->Expected(&works.front(), 0), WorkTimes::kUnknown);
}

}  // namespace
}  // namespace rdma_transport
