// Rings of notifications that begin small and grow with use.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "fabric/verbs/device.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::Fake;
using testing::FakeStats;
using testing::OnFake;

class VerbsGrowthTest : public testing::VerbsPairTest {
 protected:
  uint64_t RingOfB() { return a_.channel->backlog().ring_bytes; }
  // Sends so much at once that no ring but the largest has room for it.
  void Burst() {
    const std::string text(1000, '.');
    for (int i = 0; i < 2000; ++i) ASSERT_TRUE(a_.Notify(text + std::to_string(i)).ok());
    ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 2000; }));
    for (int i = 0; i < 2000; ++i) ASSERT_EQ(b_.handler->notes[i], text + std::to_string(i));
    b_.handler->notes.clear();
  }
  void Settle() {
    for (int quiet = 0; quiet < 100; ++quiet) {
      if (a_.device->Poll() + b_.device->Poll() != 0) quiet = 0;
    }
  }
};

TEST_F(VerbsGrowthTest, AnIdlePeerCostsFourSmallRings) {
  ConnectedPair();
  Settle();
  EXPECT_EQ(RingOfB(), kFirstRing);
  EXPECT_EQ(FakeStats().registered_bytes, 4 * kFirstRing) << "a ring and its mirror, on each side";
}

TEST_F(VerbsGrowthTest, UseLetsTheRingOfTheReceiverGrowAndNoOther) {
  for (const Isolation isolation : {Isolation::kOff, Isolation::kAddress, Isolation::kPeer}) {
    Settings settings = OnFake();
    settings.verbs.isolation = isolation;
    ConnectedPair(settings);
    while (RingOfB() < settings.verbs.ring && !HasFailure()) Burst();
    EXPECT_EQ(b_.channel->backlog().ring_bytes, kFirstRing);
    Settle();
    EXPECT_EQ(FakeStats().registered_bytes, 2 * kFirstRing + 2 * settings.verbs.ring)
        << "smaller rings are gone";
    EXPECT_EQ(FakeStats().mws, isolation == Isolation::kPeer ? 2u : 0u);
    Burst();
    Drop();
  }
}

// A record that only the largest ring can hold waits until that ring has come.
TEST_F(VerbsGrowthTest, ALongNotificationComesBetweenShortOnes) {
  const Settings settings = OnFake();
  const size_t largest = RingWriter::LargestRecordOf(settings.verbs.ring);
  ConnectedPair();
  const std::vector<std::string> texts = {"short", std::string(largest, 'l'), "shorter",
                                          std::string(largest / 2, 'm'), "last"};
  for (const std::string& text : texts) {
    ASSERT_TRUE(a_.Notify(text).ok());
    ASSERT_TRUE(b_.Notify(text).ok());
  }
  ASSERT_TRUE(PollUntil([&] {
    return a_.handler->notes.size() == texts.size() && b_.handler->notes.size() == texts.size();
  }));
  EXPECT_EQ(a_.handler->notes, texts);
  EXPECT_EQ(b_.handler->notes, texts);
  EXPECT_EQ(a_.Notify(std::string(largest + 1, 'x')).code(), Code::kInvalidArgument);
}

TEST_F(VerbsGrowthTest, WhateverTheLengthsAllComesInOrder) {
  Settings settings = OnFake();
  settings.verbs.ring = 4 << 20;
  const size_t largest = RingWriter::LargestRecordOf(settings.verbs.ring);
  for (unsigned seed = 0; seed < 10 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ConnectedPair(settings);
    std::mt19937 random(seed);
    std::vector<std::string> texts;
    while (texts.size() < 100) {
      const size_t most = std::max<size_t>(largest >> random() % 16, 1);
      texts.emplace_back(random() % most, static_cast<char>('a' + texts.size() % 26));
      ASSERT_TRUE(a_.Notify(texts.back()).ok());
      ASSERT_TRUE(b_.Notify(texts.back()).ok());
      for (unsigned n = random() % 4; n > 0; --n) (random() % 2 == 0 ? a_ : b_).device->Poll();
    }
    ASSERT_TRUE(PollUntil([&] {
      return a_.handler->notes.size() == texts.size() && b_.handler->notes.size() == texts.size();
    }));
    EXPECT_TRUE(a_.handler->notes == texts && b_.handler->notes == texts);
    Drop();
  }
}

// The receiver lacks the memory of the ring, and then the sender that of its mirror.
TEST_F(VerbsGrowthTest, WithoutMemoryForMoreTheSmallRingServesOn) {
  for (const int nth : {1, 2}) {
    ConnectedPair();
    Settle();
    Fake().fail("reg_mr", nth, ENOMEM);
    Burst();
    EXPECT_EQ(RingOfB(), kFirstRing);
    EXPECT_EQ(a_.Notify(std::string(kFirstRing, 'x')).code(), Code::kInvalidArgument);
    Burst();
    Drop();
  }
}

TEST_F(VerbsGrowthTest, WhatNeedsTheRingThatIsRefusedEndsTheChannelWithTheReason) {
  ConnectedPair();
  Settle();
  Fake().fail("reg_mr", 1, ENOMEM);
  ASSERT_TRUE(a_.Notify(std::string(kFirstRing, 'x')).ok());
  // What follows the refusal has reached the sender of the long one before that hears of it.
  for (const Nanos end = Now() + 50 * kMillisecond; Now() < end;) {
    if (b_.handler->delivered < 10) b_.Notify("goes on").IgnoreError();
    PollOne(b_);
  }
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed && b_.handler->closed; }));
  EXPECT_GE(b_.handler->delivered, 10u);
  EXPECT_GE(a_.handler->notes.size(), b_.handler->delivered);
  ExpectHas(a_.handler->reason, "no memory for a ring");
  ExpectHas(b_.handler->reason, "no memory for a ring");
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
