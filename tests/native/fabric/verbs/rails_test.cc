// Several ports: which are connected with each other, what each of them carries, and what happens
// when one goes down.

#include "fabric/verbs/rails.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/verbs/subnet.h"
#include "lines_with.h"
#include "several_ports.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::FailingPorts;
using testing::Fake;
using testing::FakeStats;
using testing::LinesWith;
using testing::SetFake;
using testing::SeveralPorts;

// Sets a flag of the fake library while it lives.
class For {
 public:
  explicit For(const char* flag) : flag_(flag) { SetFake(flag_, "1"); }
  ~For() { SetFake(flag_, "0"); }
  For(const For&) = delete;
  For& operator=(const For&) = delete;

 private:
  const char* const flag_;
};

// --- Which ports are matched ---

ChannelAddress::Port At(const char* ipv4, int bits = 24) {
  ChannelAddress::Port port;
  port.ethernet = port.active = true;
  port.gid[10] = port.gid[11] = 0xff;
  EXPECT_EQ(inet_pton(AF_INET, ipv4, port.gid.data() + 12), 1);
  port.subnet_bits = 96 + bits;
  return port;
}

ChannelAddress With(const std::vector<ChannelAddress::Port>& ports, uint32_t each = 1) {
  ChannelAddress address;
  address.ports = ports;
  for (uint32_t port = 0; port < ports.size(); ++port) {
    for (uint32_t i = 0; i < each; ++i) address.queue_pairs.push_back({10 * port + i, 0, port});
  }
  return address;
}

// "0-1 1-0": the active end's port 0 and the passive end's port 1, and so on. Both ends must agree.
std::string Matched(const ChannelAddress& active, const ChannelAddress& passive) {
  std::string text;
  std::string seen_by_passive;
  for (const Rail& rail : MatchPorts(active, passive, Role::kActive)) {
    text += " " + std::to_string(rail.own) + "-" + std::to_string(rail.peer);
  }
  for (const Rail& rail : MatchPorts(passive, active, Role::kPassive)) {
    seen_by_passive += " " + std::to_string(rail.peer) + "-" + std::to_string(rail.own);
  }
  EXPECT_EQ(text, seen_by_passive);
  return text;
}

TEST(Rails, PortsOfOneSubnetAreMatchedInTheOrderOfBothEnds) {
  EXPECT_EQ(Matched(With({At("10.0.0.1"), At("10.0.0.2")}), With({At("10.0.0.3"), At("10.0.0.4")})),
            " 0-0 1-1");
  EXPECT_EQ(Matched(With({At("10.0.0.1"), At("10.0.1.1")}), With({At("10.0.1.2"), At("10.0.0.2")})),
            " 0-1 1-0");
  EXPECT_EQ(Matched(With({At("10.0.0.1"), At("10.0.1.1")}), With({At("10.0.1.2")})), " 1-0");
  EXPECT_EQ(Matched(With({At("10.0.0.1"), At("10.0.0.2")}), With({At("10.0.0.3")})), " 0-0");
}

TEST(Rails, PortsThatAreDownComeLast) {
  ChannelAddress::Port down = At("10.0.0.1");
  down.active = false;
  EXPECT_EQ(Matched(With({down, At("10.0.0.2")}), With({At("10.0.0.3"), At("10.0.0.4")})),
            " 1-0 0-1");
  EXPECT_EQ(Matched(With({At("10.0.0.3"), At("10.0.0.4")}), With({down, At("10.0.0.2")})),
            " 0-1 1-0");
}

TEST(Rails, PortsThatShareNoSubnetAreMatchedByOrder) {
  EXPECT_EQ(Matched(With({At("10.1.0.1", 31), At("10.1.1.1", 31)}),
                    With({At("10.2.0.1", 31), At("10.2.1.1", 31)})),
            " 0-0 1-1");
  ChannelAddress::Port infiniband;
  infiniband.active = true;
  EXPECT_EQ(Matched(With({At("10.0.0.1")}), With({infiniband})), "");
}

TEST(Rails, PortsThatWereNeverActiveGetWhatIsLeft) {
  ChannelAddress::Port unknown;
  unknown.ethernet = true;
  unknown.known = false;
  EXPECT_EQ(Matched(With({At("10.0.0.1"), unknown}), With({At("10.0.0.3"), At("10.0.1.4")})),
            " 0-0 1-1");
  EXPECT_EQ(Matched(With({At("10.0.0.1"), At("10.0.1.2"), unknown}),
                    With({At("10.0.0.3"), unknown, At("10.0.2.4")})),
            " 0-0 1-1 2-2");
  EXPECT_EQ(Matched(With({At("10.0.0.1"), unknown}), With({unknown})), "");
  ChannelAddress::Port infiniband = unknown;
  infiniband.ethernet = false;
  EXPECT_EQ(Matched(With({At("10.0.0.1"), infiniband}), With({At("10.0.0.3"), unknown})), " 0-0");
}

TEST(Rails, QueuePairsOfThePortsThatBothEndsWantTakeTurns) {
  ChannelAddress two = With({At("10.0.0.1"), At("10.0.1.1")}, 2);
  ChannelAddress three = With({At("10.0.1.2"), At("10.0.0.2")}, 3);
  const auto matched = [&](uint32_t wanted_by_two, uint32_t wanted_by_three) {
    two.rails = wanted_by_two;
    three.rails = wanted_by_three;
    std::string text;
    for (const ConnectedPair& pair : MatchQueuePairs(two, three, Role::kActive)) {
      text += " " + std::to_string(pair.own) + "-" + std::to_string(pair.peer);
    }
    return text;
  };
  EXPECT_EQ(matched(2, 8), " 0-3 2-0 1-4 3-1");
  EXPECT_EQ(matched(1, 8), " 0-3 1-4");
  EXPECT_EQ(matched(8, 1), " 0-3 1-4");
}

TEST(Subnet, PrefixesAreComparedBitByBit) {
  const uint8_t a[] = {10, 0, 0x80, 1};
  const uint8_t b[] = {10, 0, 0xc0, 1};
  for (int bits = 0; bits <= 32; ++bits) EXPECT_EQ(SamePrefix(a, b, bits), bits < 18) << bits;
}

// --- What they carry ---

TEST_F(SeveralPorts, LargeTransfersAreStripedAndSmallOnesAreNot) {
  SetFake("devices", "fake_0,fake_1");
  ConnectedPair(Wide());
  ExpectToUse(true, "fake_1:1");
  ExpectToMove();
  EXPECT_GE(BytesOf("fake_0"), kLength);
  EXPECT_EQ(BytesOf("fake_1"), kLength) << "half of a write and half of a read";
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (uint64_t i = 0; i < 8; ++i) {
    const RemoteSpan span = {remote->key(), i * 1000, 1000};
    ASSERT_TRUE(a_.channel->Write(local->address(), span, 100 + i).ok());
  }
  ASSERT_TRUE(a_.Notify("small").ok());
  ASSERT_TRUE(PollUntil([&] { return Ended(107); }));
  EXPECT_EQ(BytesOf("fake_1"), kLength);
}

// The order of what ports write is not verified on cards. Each channel has the port that reaches
// the peer.
TEST_F(SeveralPorts, AChannelUsesOnePortUnlessMoreAreAskedFor) {
  SetFake("devices", "fake_0,fake_1");
  Settings settings = Wide();
  settings.verbs.ports = testing::FabricSettings().verbs.ports;
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(settings));
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), 0u);
  SetFake("fake_0.port_state", "down");
  ASSERT_TRUE(TalkUntilClosed());
  ASSERT_NO_FATAL_FAILURE(ExpectToWork());
  ExpectToMove();
  EXPECT_GT(BytesOf("fake_1"), kLength) << "the one that works";
}

// Their pieces in the lanes are short.
TEST_F(SeveralPorts, SlowPortsShareTransfersToo) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("active_width", "1");
  SetFake("active_speed", "8");
  Settings settings = Wide();
  settings.verbs.chunk = 0;
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(settings));
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1"));
  ExpectToMove();
  EXPECT_GT(BytesOf("fake_1"), kLength * 9 / 10);
  EXPECT_GT(BytesOf("fake_0"), kLength * 9 / 10);
}

TEST_F(SeveralPorts, AlsoByWindowsOfEachPort) {
  SetFake("devices", "fake_0,fake_1,fake_2");
  SetFake("fake_1.windows", "none");
  Settings settings = Wide();
  settings.verbs.isolation = Isolation::kPeer;
  ConnectedPair(settings);
  ExpectToUse(true, "fake_1:1");
  ExpectToUse(true, "fake_2:1");
  ExpectToMove();
  EXPECT_GT(BytesOf("fake_1"), kLength / 2);
  EXPECT_GT(BytesOf("fake_2"), kLength / 2);
}

TEST_F(SeveralPorts, QueuePairsAreOfEachPort) {
  SetFake("devices", "fake_0,fake_1");
  Settings settings = Wide();
  settings.verbs.queue_pairs = 2;
  ConnectedPair(settings);
  EXPECT_EQ(FakeStats().qps, 8u);
  ExpectToUse(true, "fake_1:1, fake_1:1");
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), kLength);
}

TEST_F(SeveralPorts, PortsOnDifferentSubnetsDoNotConfuseEachOther) {
  SetFake("ports", "2");
  SetFake("fake_0:2.network", "7");  // and its address is on another subnet
  ASSERT_TRUE(OpenDevice(Wide("fake_0:1,fake_0:2"), &a_.device).ok());
  ASSERT_TRUE(OpenDevice(Wide("fake_0:2,fake_0:1"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToUse(true, "fake_0:2");
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_0", 2), kLength);
  Drop();
  b_.device.reset();
  ASSERT_TRUE(OpenDevice(Wide("fake_0:2"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToMove();
  EXPECT_GE(BytesOf("fake_0", 2), 3 * kLength) << "the only port that reaches the peer";
}

TEST_F(SeveralPorts, APortThatDoesNotReachThePeerCarriesNothing) {
  SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
  SetFake("fake_3.network", "7");
  ConnectTwoByTwo(Wide());
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1") + BytesOf("fake_3"), 0u);
  ExpectToUse(false, "fake_1:1", "fake_3:1");
}

TEST_F(SeveralPorts, MemoryThatOnePortRefusesGoesByTheOthers) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("fake_1.max_mr", "1");  // its ring's
  ConnectedPair(Wide());
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), 0u);
}

TEST_F(SeveralPorts, AChannelDoesWithoutAPortThatHasNoQueuePairsLeft) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("fake_1.max_qp", "0");
  ConnectedPair(Wide());
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), 0u);
}

// --- Ports that fail and return ---

TEST_P(FailingPorts, APortThatGoesDownIsLeftAndTakenBack) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  for (const char* device : {"fake_1", "fake_3"}) {
    const std::string state = std::string(device) + ":1.port_state";
    MoveWhile([&] {
      PollFor(30 * kMillisecond);
      SetFake(state.c_str(), "down");
    });
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
    const uint64_t before = BytesOf("fake_1") + BytesOf("fake_3");
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_EQ(BytesOf("fake_1") + BytesOf("fake_3"), before);
    SetFake(state.c_str(), "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_EQ(BytesOf("fake_1") + BytesOf("fake_3"), before + kLength);
    SetFake("bandwidth", "3000000");
  }
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

// Soft-RoCE keeps queue pairs of an interface that is down, and those who destroy them.
TEST_P(FailingPorts, TheThreadThatPollsDoesNotWaitForAQueuePairThatTheCardKeeps) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "0");
  const uint64_t before = FakeStats().qps;
  {
    const For kept("keep_qps");
    for (int i = 0; i < 2; ++i) {
      SetFake("fake_1:1.port_state", "down");
      ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
      ASSERT_NO_FATAL_FAILURE(ExpectToMove());
      SetFake("fake_1:1.port_state", "active");
      ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
      ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    }
    EXPECT_GE(FakeStats().qps, before + 4) << "two of each end are kept";
  }
  EXPECT_TRUE(PollUntil([&] { return FakeStats().qps == before; }));
}

// Over RoCE, the kernel waits for the peer's address.
TEST_P(FailingPorts, TheThreadThatPollsDoesNotWaitForAQueuePairToConnect) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "0");
  const uint64_t before = FakeStats().qps;
  {
    const For held("hold_rtr");
    for (int i = 0; i < 3; ++i) {
      SetFake("fake_1:1.port_state", "down");  // at last, while the passive end connects
      ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
      SetFake("fake_1:1.port_state", "active");
      ASSERT_TRUE(PollUntil([&] { return FakeStats().held == 1; }));
      ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
  EXPECT_TRUE(PollUntil([&] { return FakeStats().qps == before; }));
}

TEST_P(FailingPorts, AQueuePairThatConnectsDoesNotKeepTheChannel) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "0");
  SetFake("fake_1:1.port_state", "down");
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
  {
    const For held("hold_rtr");
    SetFake("fake_1:1.port_state", "active");
    ASSERT_TRUE(PollUntil([&] { return FakeStats().held == 1; }));
    a_.channel->Close(Status(Code::kCancelled, "enough"));
    ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
    EXPECT_GT(FakeStats().qps, 0u);
  }
  EXPECT_TRUE(PollUntil([&] { return FakeStats().qps == 0; }));
}

// Soft-RoCE reports this before the event of the port.
TEST_P(FailingPorts, AnInterfaceThatGoesDownIsNoticedByATransfer) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  for (int nth = 1; nth <= 4; ++nth) {
    SCOPED_TRACE(nth);
    SetFake("bandwidth", "3000000");
    MoveWhile([&] {
      PollFor(30 * kMillisecond);
      Fake().complete_with(IBV_WC_LOC_QP_OP_ERR, 0, nth);
      PollFor(30 * kMillisecond);
    });
    if (HasFatalFailure()) return;
    ASSERT_TRUE(PollUntil([&] {
      return BothClosed() || (a_.channel->Route().find(", ") != std::string::npos &&
                              b_.channel->Route().find(", ") != std::string::npos);
    }));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  }
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

TEST_P(FailingPorts, AChannelBeginsWithoutAPortThatIsUnreachable) {
  Settings settings = Wide();
  settings.verbs.isolation = GetParam();
  // The queue pairs of both ends are initialized, then those of the passive end are connected.
  for (const int nth : {7, 11}) {
    SCOPED_TRACE(nth);
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    Fake().fail("modify_qp", nth, ENETUNREACH);
    ASSERT_NO_FATAL_FAILURE(ConnectTwoByTwo(settings));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
    DropDevices();
  }
}

TEST_P(FailingPorts, TheLogSaysOnceWhyAPortIsNotTakenBack) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("fake_1:1.port_state", "down");
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
  const LinesWith reasons("still does without fake_1:1: ibv_create_qp on fake_1");
  Fake().fail("create_qp", 1, ENOMEM);
  SetFake("fake_1:1.port_state", "active");
  ASSERT_TRUE(PollUntil([&] { return reasons.count() > 0; }));
  Fake().fail("create_qp", 1, ENOMEM);
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
  EXPECT_EQ(reasons.count(), 1);
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
}

TEST_P(FailingPorts, AQueuePairThatDoesNotConnectIsTriedAgainLater) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "0");
  for (const std::string device : {"fake_1", "fake_3"}) {
    SCOPED_TRACE(device);
    SetFake("fake_1:1.port_state", "down");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
    const LinesWith reasons("still does without " + device + ":1: ibv_modify_qp to RTR on " +
                            device);
    SetFake((device + ".rtr_error").c_str(), "ENXIO");
    SetFake("fake_1:1.port_state", "active");
    ASSERT_TRUE(PollUntil([&] { return reasons.count() > 0; }));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    SetFake((device + ".rtr_error").c_str(), "0");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    EXPECT_EQ(reasons.count(), 1);
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  }
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

TEST_P(FailingPorts, ACutCableIsNoticedByATransferAndTriedAgainLater) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  CutFurtherPathForAWhile();
}

// Soft-RoCE stops its retries, and reports nothing, if the interface holds them.
TEST_P(FailingPorts, APathThatHoldsPacketsForEverIsLeft) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow(2 * kSecond));
  SetFake("retry_ms", "600000");
  CutFurtherPathForAWhile();
}

INSTANTIATE_TEST_SUITE_P(, FailingPorts, ::testing::Values(Isolation::kAddress, Isolation::kPeer),
                         [](const auto& info) {
                           return info.param == Isolation::kPeer ? "Windows" : "Keys";
                         });

}  // namespace
}  // namespace rdma_transport::fabric::verbs
