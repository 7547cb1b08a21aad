// Large transfers beside small ones: which of them wait.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::Fake;
using testing::OnFake;
using testing::SetFake;

constexpr uint64_t kLength = 2 << 20;
constexpr uint64_t kSmall = 512;
constexpr uint64_t kLarge = kLength - kSmall;

class LanesTest : public testing::VerbsPairTest {
 protected:
  // A large write takes about half a second.
  void Begin() {
    SetFake("active_width", "1");  // 10 Gb/s, so pieces are small
    SetFake("active_speed", "8");
    ASSERT_NO_FATAL_FAILURE(ConnectedPair(OnFake()));
    const size_t granules = kLength / a_.device->RegionGranule() + 1;
    remote_ = Shared(b_, granules);
    local_ = Allocate(a_, granules);
    for (uint64_t i = 0; i < kLength; ++i)
      local_->address()[i] = static_cast<char>(i * 7 + i / 4096);
    received_before_ = b_.handler->notes.size();
    delivered_before_ = a_.handler->delivered;
    SetFake("bandwidth", "4000000");
  }
  Status Write(uint64_t offset, uint64_t length, uint64_t cookie) {
    return a_.channel->Write(local_->address() + offset, {remote_->key(), offset, length}, cookie);
  }
  Status WriteLarge() { return Write(kSmall, kLarge, 1); }
  void Notify(const std::string& text, After after) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    uint64_t number = 0;
    ASSERT_TRUE(a_.channel->Notify(&part, 1, Urgency::kWake, &number, after).ok());
    ++sent_;
    EXPECT_EQ(number, delivered_before_ + sent_);
  }
  // The texts of the notifications that b has received since Begin().
  std::vector<std::string> Received() const {
    return {b_.handler->notes.begin() + static_cast<ptrdiff_t>(received_before_),
            b_.handler->notes.end()};
  }
  void ExpectReceived(const std::vector<std::string>& texts) {
    ASSERT_TRUE(PollUntil([&] { return Received().size() >= texts.size() || a_.handler->closed; }));
    EXPECT_EQ(Received(), texts);
  }
  bool Arrived(uint64_t offset, uint64_t length) const {
    return std::memcmp(remote_->address() + offset, local_->address() + offset, length) == 0;
  }
  bool Ended(uint64_t cookie) const {
    return std::any_of(a_.handler->transfers.begin(), a_.handler->transfers.end(),
                       [&](const auto& one) { return one.first == cookie; });
  }
  void TearDown() override {
    Drop();
    remote_.reset();
    local_.reset();
    VerbsPairTest::TearDown();
  }
  void GoOn() { SetFake("bandwidth", "0"); }

  std::unique_ptr<Region> remote_;
  std::unique_ptr<Region> local_;
  uint64_t delivered_before_ = 0;
  uint64_t sent_ = 0;
  size_t received_before_ = 0;
};

TEST_F(LanesTest, SmallWritesOvertakeALargeOne) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(WriteLarge().ok());
  Notify("large", After::Write(1));
  ASSERT_TRUE(Write(0, kSmall, 2).ok());
  Notify("small", After::Write(2));
  Notify("none", After::Nothing());
  ExpectReceived({"small", "none"});
  EXPECT_TRUE(Arrived(0, kSmall));
  EXPECT_FALSE(Ended(1));
  ASSERT_TRUE(PollUntil([&] { return Ended(2); })) << "it does not wait for the large one either";
  EXPECT_FALSE(Ended(1));
  EXPECT_EQ(a_.handler->delivered, delivered_before_) << "the first notification has not arrived";
  EXPECT_GE(a_.channel->backlog().waiting_bytes, 5u) << "the word 'large'";
  GoOn();
  ExpectReceived({"small", "none", "large"});
  EXPECT_TRUE(Arrived(kSmall, kLarge));
  ASSERT_TRUE(
      PollUntil([&] { return Ended(1) && a_.handler->delivered == delivered_before_ + 3; }));
}

TEST_F(LanesTest, WhatFollowsEverythingIsOvertakenByNothing) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(WriteLarge().ok());
  Notify("first", After::Nothing());
  Notify("large", After::Everything());
  Notify("next", After::Nothing());
  ASSERT_TRUE(Write(0, kSmall, 2).ok());
  Notify("small", After::Write(2));
  ExpectReceived({"first"});
  EXPECT_FALSE(Ended(1));
  GoOn();
  ExpectReceived({"first", "large", "next", "small"});
  EXPECT_TRUE(Arrived(0, kLength));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->delivered == delivered_before_ + 4; }));
}

TEST_F(LanesTest, ASmallReadOvertakesALargeOne) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  std::memset(local_->address(), 0, kLength);
  std::memset(remote_->address(), 5, kLength);
  char* const to = local_->address();
  ASSERT_TRUE(a_.channel->Read({remote_->key(), kSmall, kLarge}, to + kSmall, 1).ok());
  ASSERT_TRUE(a_.channel->Read({remote_->key(), 0, kSmall}, to, 2).ok());
  ASSERT_TRUE(PollUntil([&] { return Ended(2); }));
  EXPECT_TRUE(Arrived(0, kSmall));
  EXPECT_FALSE(Ended(1));
  GoOn();
  ASSERT_TRUE(PollUntil([&] { return Ended(1); }));
  EXPECT_TRUE(Arrived(0, kLength));
}

TEST_F(LanesTest, ManyLargeWritesEndInTheirOrder) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  GoOn();
  constexpr uint64_t kEach = kLength / 8;
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(Write(i * kEach, kEach, i).ok());
    Notify(std::to_string(i), i % 2 == 0 ? After::Write(i) : After::Everything());
  }
  ExpectReceived({"0", "1", "2", "3", "4", "5", "6", "7"});
  EXPECT_TRUE(Arrived(0, kLength));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 8; }));
  for (uint64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(a_.handler->transfers[i].first, i);
    EXPECT_TRUE(a_.handler->transfers[i].second.ok());
  }
}

TEST_F(LanesTest, ClosingStillSendsWhatWaits) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  constexpr uint64_t kWaits = 128 << 10;  // there is not much time for it
  ASSERT_TRUE(Write(0, kWaits, 1).ok());
  Notify("large", After::Write(1));
  a_.channel->Close(Status(Code::kCancelled, "enough"));
  GoOn();
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_EQ(Received(), std::vector<std::string>{"large"});
  EXPECT_TRUE(Arrived(0, kWaits));
  EXPECT_NE(b_.handler->reason.message().find("enough"), std::string::npos);
}

TEST_F(LanesTest, MemoryThatThePeerTakesBackEndsTheChannel) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(WriteLarge().ok());
  Notify("large", After::Write(1));
  remote_.reset();
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_TRUE(Received().empty()) << "what was not written was announced";
  EXPECT_EQ(a_.handler->delivered, delivered_before_);
}

TEST_F(LanesTest, APeerThatIsGoneEndsWhatWaits) {
  ASSERT_NO_FATAL_FAILURE(Begin());
  ASSERT_TRUE(WriteLarge().ok());
  Notify("large", After::Write(1));
  Notify("after", After::Everything());
  Fake().break_path(true);
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  EXPECT_EQ(a_.handler->delivered, delivered_before_);
  EXPECT_FALSE(Ended(1));
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
