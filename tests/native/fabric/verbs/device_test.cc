// What the channels of a verbs device share: completion queues, sleeping, and memory that is
// registered only when it is needed.

#include "fabric/verbs/device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/combined.h"
#include "fabric/shm/device.h"
#include "fabric/striped/device.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::Fake;
using testing::FakeStats;
using testing::OnFake;
using testing::SetFake;
using testing::Side;

class VerbsDeviceTest : public testing::VerbsPairTest {
 protected:
  void ConnectMany(int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_NO_FATAL_FAILURE(Connect());
      auto& [a, b] = many_.emplace_back();
      a.handler = std::move(a_.handler);
      b.handler = std::move(b_.handler);
      a.channel = std::move(a_.channel);
      b.channel = std::move(b_.channel);
    }
  }

  std::vector<std::pair<Side, Side>> many_;
};

// --- Completion queues ---

TEST_F(VerbsDeviceTest, ChannelsThatComeAndGoShareTheQueues) {
  OpenDevices();
  for (int i = 0; i < 300; ++i) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_TRUE(a_.Notify("hello").ok());
    ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
    if (i % 2 == 0) b_.channel->Close(Status(Code::kAborted, "enough"));
    Drop();
  }
  EXPECT_EQ(FakeStats().cqs, 2u) << "one of each device";
  EXPECT_EQ(FakeStats().mrs, 0u);
}

TEST_F(VerbsDeviceTest, TasksOfAHostUseDifferentCompletionVectors) {
  SetFake("comp_vectors", "1024");
  OpenDevices();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(FakeStats().last_vector, static_cast<uint64_t>(getpid()) % 1024);
}

TEST_F(VerbsDeviceTest, ManyChannelsGetAsManyQueuesAsTheyNeed) {
  SetFake("max_cqe", "100");  // two channels each
  OpenDevices();
  ASSERT_NO_FATAL_FAILURE(ConnectMany(25));
  EXPECT_EQ(FakeStats().cqs, 26u);
  for (int i = 0; i < 100; ++i) {
    for (auto& [a, b] : many_) ASSERT_TRUE(a.Notify(std::to_string(i)).ok());
  }
  ASSERT_TRUE(PollUntil([&] {
    for (auto& [a, b] : many_) {
      if (b.handler->notes.size() < 100) return false;
    }
    return true;
  }));
  for (auto& [a, b] : many_) EXPECT_EQ(b.handler->notes.back(), "99");
  EXPECT_LE(FakeStats().highest_cq_fill, 100u);
  many_.clear();
  ASSERT_TRUE(PollUntil([] { return FakeStats().qps == 0; }));
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(FakeStats().cqs, 26u) << "their entries are free again";
}

TEST_F(VerbsDeviceTest, OneQueueGrowsWithItsChannels) {
  Settings settings = OnFake();
  settings.verbs.queue_depth = 256;  // the first queue serves 7 channels
  OpenDevices(settings);
  ASSERT_NO_FATAL_FAILURE(ConnectMany(40));
  EXPECT_EQ(FakeStats().cqs, 2u);
  for (auto& [a, b] : many_) ASSERT_TRUE(a.Notify("hello").ok());
  ASSERT_TRUE(PollUntil([&] {
    return std::all_of(many_.begin(), many_.end(),
                       [](const auto& pair) { return !pair.second.handler->notes.empty(); });
  }));
  many_.clear();
}

TEST_F(VerbsDeviceTest, WhereAQueueCannotBeResizedThereIsAnotherTwiceAsLarge) {
  Settings settings = OnFake();
  settings.verbs.queue_depth = 256;
  OpenDevices(settings);
  ASSERT_NO_FATAL_FAILURE(ConnectMany(7));
  Fake().fail("resize_cq", 1, ENOSYS);
  ASSERT_NO_FATAL_FAILURE(ConnectMany(14));
  EXPECT_EQ(FakeStats().cqs, 3u) << "one of the two devices has two";
  many_.clear();
}

TEST_F(VerbsDeviceTest, ACardThatHasNoMoreQueuePairsIsAnErrorWithItsLimit) {
  SetFake("max_qp", "6");  // three pairs of channels
  OpenDevices();
  ASSERT_NO_FATAL_FAILURE(ConnectMany(3));
  const Status one_more = OpenChannel(&a_);
  EXPECT_EQ(one_more.code(), Code::kResourceExhausted);
  ExpectHas(one_more, "this process has 3 queue pairs, the card 6 for all processes");
  ASSERT_TRUE(many_[0].first.Notify("undisturbed").ok());
  ASSERT_TRUE(PollUntil([&] { return many_[0].second.handler->notes.size() == 1; }));
  many_.clear();
  ASSERT_TRUE(PollUntil([] { return FakeStats().qps == 0; }));
  // All by one device.
  std::vector<std::shared_ptr<Channel>> channels(7);
  Status last;
  for (auto& channel : channels) {
    EXPECT_TRUE(last.ok()) << last.message();
    last = a_.device->Open(a_.handler, &channel);
  }
  EXPECT_EQ(last.code(), Code::kResourceExhausted);
  ExpectHas(last,
            "this process has 6 queue pairs, the card 6 for all processes: a task with fewer");
}

// --- What is said of the port ---

TEST_F(VerbsDeviceTest, ThePortIsReportedWithItsSubnet) {
  SetFake("gids", "rocev2:10.7.3.1");
  OpenDevices();
  ASSERT_EQ(a_.device->Ports().size(), 1u);
  EXPECT_EQ(a_.device->Ports()[0].subnet, "10.7.3.0/24");
  a_.device.reset();
  SetFake("gids", "rocev2:fd00:7::1");
  ASSERT_TRUE(testing::OpenPlain(OnFake(), &a_.device).ok());
  EXPECT_EQ(a_.device->Ports()[0].subnet, "fd00:7::/64");
  EXPECT_TRUE(a_.device->Active());
}

// --- Many channels ---

TEST_F(VerbsDeviceTest, WhateverAChannelNeedsIsDoneAmongManyThatNeedNothing) {
  OpenDevices();
  ASSERT_NO_FATAL_FAILURE(ConnectMany(30));
  for (size_t i = 0; i < many_.size(); i += 7) {
    auto& [a, b] = many_[i];
    ASSERT_TRUE(a.Notify("no hurry", Urgency::kLazy).ok());
    ASSERT_TRUE(PollUntil([&, to = b.handler] { return to->notes.size() == 1; }));
    char byte = 0;
    ASSERT_TRUE(a.channel->Read({12345, 0, 1}, &byte, 7).ok());
    ASSERT_TRUE(PollUntil([&, to = a.handler] { return to->transfers.size() == 1; }));
    EXPECT_EQ(a.handler->transfers[0].second.code(), Code::kInvalidArgument);
    a.handler.reset();
    ASSERT_TRUE(PollUntil([&, to = b.handler] { return to->closed; }));
  }
  for (size_t i = 0; i < many_.size(); ++i) EXPECT_EQ(many_[i].second.handler->closed, i % 7 == 0);
  many_.clear();
}

TEST_F(VerbsDeviceTest, RingsForManyPeersAreSmall) {
  OpenDevices();
  ASSERT_NO_FATAL_FAILURE(ConnectMany(kLargeRings + 1));
  EXPECT_EQ(many_[kLargeRings - 1].first.channel->backlog().ring_bytes, kLargeRing);
  EXPECT_EQ(many_[kLargeRings].first.channel->backlog().ring_bytes, kSmallRing);
  many_.clear();
}

// --- Sleeping ---

TEST_F(VerbsDeviceTest, WakeEndsASleepBeforeAndAfterItBegins) {
  ConnectedPair();
  for (int i = 0; i < 50; ++i) {
    while (a_.device->Poll() > 0 || !a_.device->ArmNotification()) {
    }
    std::thread waker([&] { a_.device->Wake(); });
    if (i % 2 == 0) std::this_thread::yield();
    const Nanos before = Now();
    a_.device->Sleep(before + 5 * kSecond);
    EXPECT_LT(Now() - before, 4 * kSecond);
    waker.join();
  }
}

// --- Memory that the card learns of only when it must ---

TEST_F(VerbsDeviceTest, MemoryOfAnotherFabricIsRegisteredWhenAVerbsPeerNeedsIt) {
  OpenDevices();
  Settings settings = OnFake();
  std::vector<Member> members(2);
  members[0].name = "shm";
  members[1].name = "verbs";
  ASSERT_TRUE(shm::ShmDevice::Create(settings, &members[0].device).ok());
  std::vector<std::unique_ptr<Device>> ports;
  ASSERT_TRUE(VerbsDevice::OpenPorts(settings, &ports).ok());
  ASSERT_TRUE(
      striped::StripedDevice::Create("verbs", std::move(ports), {}, &members[1].device).ok());
  a_.device = std::make_unique<CombinedDevice>(std::move(members), std::vector<Absent>());
  const uint64_t before = FakeStats().registrations;
  auto shared = Allocate(a_);
  auto local = Allocate(a_);
  EXPECT_EQ(FakeStats().registrations, before) << "nobody needs it";
  Connect();  // b has nothing but verbs
  EXPECT_STREQ(a_.channel->fabric(), "verbs");
  const uint64_t connected = FakeStats().registrations;
  Fake().fail("reg_mr", 1, ENOMEM);
  const Status refused = a_.channel->Share(shared->key());
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  ExpectHas(refused, "fake_0:1");
  EXPECT_FALSE(a_.handler->closed);
  ASSERT_TRUE(a_.channel->Share(shared->key()).ok());
  ASSERT_TRUE(a_.channel->Share(shared->key()).ok());
  EXPECT_EQ(FakeStats().registrations, connected + 1);
  const auto remote = Shared(b_);
  const RemoteSpan span = {remote->key(), 0, 100};
  Fake().fail("reg_mr", 1, ENOMEM);
  EXPECT_EQ(a_.channel->Write(local->address(), span, 1).code(), Code::kResourceExhausted);
  Fake().fail("reg_mr", 1, ENOMEM);
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 2).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_EQ(a_.handler->transfers[0].second.code(), Code::kResourceExhausted);
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 3).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 2; }));
  EXPECT_TRUE(a_.handler->transfers[1].second.ok());
  const uint64_t mrs = FakeStats().mrs;
  shared.reset();
  local.reset();
  EXPECT_EQ(FakeStats().mrs, mrs - 2);
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
