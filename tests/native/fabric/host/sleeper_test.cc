#include "fabric/host/sleeper.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdint>

#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {
namespace {

constexpr Nanos kPast = 1;

class SleeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(sleeper_.Init().ok());
    ASSERT_TRUE(events_.valid());
    ASSERT_TRUE(sleeper_.Add(events_.get()).ok());
  }
  void BecomeReadable() { ASSERT_EQ(eventfd_write(events_.get(), 1), 0); }
  // Whether the descriptor ends a sleep that begins now.
  bool Ends() {
    sleeper_.Sleep(kPast);
    return sleeper_.Clear();
  }

  const FileDescriptor events_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  Sleeper sleeper_;
};

TEST_F(SleeperTest, AnEventEndsOneSleepOnly) {
  sleeper_.WatchOnce(events_.get());
  EXPECT_FALSE(Ends());
  BecomeReadable();
  EXPECT_TRUE(Ends());
  EXPECT_FALSE(Ends()) << "the event ended a second sleep";
  sleeper_.WatchOnce(events_.get());
  EXPECT_TRUE(Ends()) << "an event that came earlier was lost";
}

TEST_F(SleeperTest, WhatIsNotWatchedEndsNoSleep) {
  BecomeReadable();
  EXPECT_FALSE(Ends());
  sleeper_.WatchOnce(events_.get());
  sleeper_.Unwatch(events_.get());
  EXPECT_FALSE(Ends());
}

TEST_F(SleeperTest, AWakeEndsAllSleepsUntilItIsCleared) {
  sleeper_.Wake();
  for (int i = 0; i < 3; ++i) sleeper_.Sleep(0);  // without a deadline
  EXPECT_TRUE(sleeper_.woken());
  EXPECT_FALSE(sleeper_.Clear());
  EXPECT_FALSE(sleeper_.woken());
}

}  // namespace
}  // namespace rdma_transport::fabric::host
