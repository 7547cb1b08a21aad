// Links whose addresses look right and whose packets do not arrive: another fabric is used.

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/combined.h"
#include "loopback_fabric/device.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric {
namespace {

using testing::ExpectHas;
using testing::Fake;
using testing::Side;

class FallbackTest : public testing::VerbsPairTest {
 protected:
  void SetUp() override {
    VerbsPairTest::SetUp();
    for (Side* side : {&a_, &b_}) Open(side, "loopback");
  }
  static void Open(Side* side, const char* second) {
    std::vector<Member> members(2);
    members[0].name = "verbs";
    ASSERT_TRUE(testing::OpenPlain(testing::OnFake(), &members[0].device).ok());
    members[1].name = second;
    ASSERT_TRUE(testing::LoopbackDevice::Create(testing::OnFake(), &members[1].device).ok());
    std::vector<Absent> none;
    side->device = std::make_unique<CombinedDevice>(std::move(members), std::move(none));
  }
  // Connects as tasks do: the passive end answers with its choice. Returns whether it came up.
  bool Try(Side* active, Side* passive) {
    EXPECT_TRUE(OpenChannel(active).ok());
    EXPECT_TRUE(OpenChannel(passive).ok());
    last_ = passive->channel->Connect(active->channel->Address(), Role::kPassive);
    if (last_.ok()) {
      last_ = active->channel->Connect(passive->channel->Address(), Role::kActive);
    }
    if (!last_.ok()) return false;
    EXPECT_TRUE(PollUntil([&] { return active->handler->closed || active->handler->connected; }));
    if (active->handler->closed) return false;
    return PollUntil([&] { return passive->handler->connected; });
  }
  bool Try() { return Try(&a_, &b_); }

  Status last_;
};

TEST_F(FallbackTest, AfterTwoFailuresTheNextFabricIsUsed) {
  ASSERT_TRUE(Try());
  EXPECT_STREQ(a_.channel->fabric(), "verbs");
  Drop();
  Fake().break_path(true);
  EXPECT_FALSE(Try());
  EXPECT_FALSE(Try());
  ASSERT_TRUE(Try()) << last_.message();
  EXPECT_STREQ(a_.channel->fabric(), "loopback");
  EXPECT_STREQ(b_.channel->fabric(), "loopback");
  ExpectHas(a_.channel->Route(), "not verbs: connections did not come up in the last minutes");
  ExpectToTalk();
  // The other end has not tried, but is told.
  ASSERT_TRUE(Try(&b_, &a_));
  EXPECT_STREQ(b_.channel->fabric(), "loopback");
}

TEST_F(FallbackTest, ANewProcessIsTriedAgain) {
  Fake().break_path(true);
  EXPECT_FALSE(Try());
  EXPECT_FALSE(Try());
  Fake().break_path(false);
  Drop();
  Open(&b_, "loopback");
  ASSERT_TRUE(Try());
  EXPECT_STREQ(a_.channel->fabric(), "verbs");
}

TEST_F(FallbackTest, AConnectionInBetweenStartsTheCountAnew) {
  for (int round = 0; round < 2; ++round) {
    Fake().break_path(true);
    EXPECT_FALSE(Try());
    Fake().break_path(false);
    ASSERT_TRUE(Try());
    EXPECT_STREQ(a_.channel->fabric(), "verbs");
    Drop();
  }
}

TEST_F(FallbackTest, WhoIsClosedOnPurposeIsNotAvoided) {
  Fake().break_path(true);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(OpenChannel(&a_).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
    a_.channel->Close(Status(Code::kCancelled, "not needed any more"));
    ASSERT_TRUE(PollUntil([&] { return a_.handler->closed > 0; }));
  }
  Fake().break_path(false);
  ASSERT_TRUE(Try());
  EXPECT_STREQ(a_.channel->fabric(), "verbs");
}

// Then TensorFlow's transport is used, and the fabric is tried again.
TEST_F(FallbackTest, WithoutAnotherFabricThePeerIsNotReachedForAWhile) {
  Open(&b_, "another one");
  Fake().break_path(true);
  EXPECT_FALSE(Try());
  EXPECT_FALSE(Try());
  EXPECT_TRUE(last_.ok());
  EXPECT_FALSE(Try());
  EXPECT_EQ(last_.code(), Code::kFailedPrecondition) << "after Unavailable none is tried again";
  ExpectHas(last_, "verbs: connections did not come up in the last minutes");
}

TEST_F(FallbackTest, WhatNeverConnectsEndsOnce) {
  ASSERT_TRUE(OpenChannel(&a_).ok());
  EXPECT_FALSE(a_.channel->OutlivedByTransfers());
  a_.channel->Close(Status(Code::kDeadlineExceeded, "nobody answers"));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  PollFor(kMillisecond);  // there is one channel of each fabric, and the handler counts
}

TEST_F(FallbackTest, TheEndMayComeWhileItBeginsToConnect) {
  Fake().break_path(true);
  for (int round = 0; round < 50; ++round) {
    ASSERT_TRUE(OpenChannel(&a_).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    if (!b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok()) continue;
    std::atomic<bool> begun{false};
    std::thread connecting([&, to = b_.channel->Address()] {
      begun.store(true);
      a_.channel->Connect(to, Role::kActive).IgnoreError();
    });
    while (!begun.load()) std::this_thread::yield();
    a_.channel->Close(Status(Code::kDeadlineExceeded, "it takes too long"));
    EXPECT_TRUE(PollUntil([&] { return a_.handler->closed; }));
    connecting.join();
  }
}

}  // namespace
}  // namespace rdma_transport::fabric
