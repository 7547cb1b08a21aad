// Several ports: which are connected with each other, what each of them carries, and what happens
// when one goes down.

#include "fabric/verbs/rails.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "fabric/verbs/subnet.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::Fake;
using testing::FakeStats;
using testing::OnFake;
using testing::SetFake;
using testing::Side;

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

TEST(Rails, QueuePairsOfThePortsTakeTurns) {
  const ChannelAddress two = With({At("10.0.0.1"), At("10.0.1.1")}, 2);
  const ChannelAddress three = With({At("10.0.1.2"), At("10.0.0.2")}, 3);
  std::string text;
  for (const ConnectedPair& pair : MatchQueuePairs(two, three, Role::kActive)) {
    text += " " + std::to_string(pair.own) + "-" + std::to_string(pair.peer);
  }
  EXPECT_EQ(text, " 0-3 2-0 1-4 3-1");
}

TEST(Subnet, PrefixesAreComparedBitByBit) {
  const uint8_t a[] = {10, 0, 0x80, 1};
  const uint8_t b[] = {10, 0, 0xc0, 1};
  for (int bits = 0; bits <= 32; ++bits) EXPECT_EQ(SamePrefix(a, b, bits), bits < 18) << bits;
}

// --- What they carry ---

class SeveralPorts : public testing::VerbsPairTest {
 protected:
  static constexpr uint64_t kLength = 2 << 20;

  static Settings Wide(const std::string& devices = "") {
    Settings settings = OnFake();
    settings.verbs.chunk = 64 << 10;
    settings.verbs.devices = devices;
    return settings;
  }
  static uint64_t BytesOf(const char* device, int port = 1) {
    return Fake().port_bytes(device, port);
  }
  static void Fill(Region* region, unsigned seed) {
    for (uint64_t i = 0; i < kLength; ++i) {
      region->address()[i] = static_cast<char>(i * 7 + i / 4096 + seed);
    }
  }
  // Writes and reads all of a region, and compares.
  void ExpectToMove() {
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    Fill(local.get(), ++seed_);
    const RemoteSpan span = {remote->key(), 0, kLength};
    const size_t before = b_.handler->notes.size();
    ASSERT_TRUE(a_.channel->Write(local->address(), span, ++cookie_).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() > before; }));
    EXPECT_EQ(std::memcmp(remote->address(), local->address(), kLength), 0);
    Fill(remote.get(), ++seed_);
    ASSERT_TRUE(a_.channel->Read(span, local->address(), ++cookie_).ok());
    ASSERT_TRUE(PollUntil([&] { return Ended(cookie_); }));
    EXPECT_EQ(std::memcmp(remote->address(), local->address(), kLength), 0);
  }
  // Waits until both ends use a further port, or have left it.
  void ExpectToUse(bool used, const std::string& of_a, const std::string& of_b) {
    const auto uses = [](const Side& side, const std::string& port) {
      return side.channel->Route().find(", " + port) != std::string::npos;
    };
    ASSERT_TRUE(PollUntil([&] { return uses(a_, of_a) == used && uses(b_, of_b) == used; }))
        << a_.channel->Route() << " and " << b_.channel->Route();
  }
  void ExpectToUse(bool used, const std::string& port) { ExpectToUse(used, port, port); }
  // Two ends with two ports each, none of which they share.
  void ConnectTwoByTwo(Settings settings) {
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    settings.verbs.devices = "=fake_0,fake_1";
    ASSERT_TRUE(OpenDevice(settings, &a_.device).ok());
    settings.verbs.devices = "=fake_2,fake_3";
    ASSERT_TRUE(OpenDevice(settings, &b_.device).ok());
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  // Begins transfers in both directions, calls `disturb` while they are under way, and compares.
  template <typename Disturb>
  void MoveWhile(Disturb disturb) {
    const auto remote = Shared(b_, 4);
    const auto local = Allocate(a_, 4);
    Fill(local.get(), ++seed_);
    Fill(remote.get(), ++seed_);
    const std::string written(local->address(), kLength / 2);
    const std::string read(remote->address() + kLength / 2, kLength / 2);
    const uint64_t half = kLength / 2;
    ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, half}, ++cookie_).ok());
    ASSERT_TRUE(
        a_.channel->Read({remote->key(), half, half}, local->address() + half, ++cookie_).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    const size_t before = b_.handler->notes.size();
    disturb();
    SetFake("bandwidth", "0");
    EXPECT_FALSE(Ended(cookie_)) << "too late";
    ASSERT_TRUE(PollUntil([&] {
      return BothClosed() ||
             (b_.handler->notes.size() > before && Ended(cookie_) && Ended(cookie_ - 1));
    }));
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
    EXPECT_EQ(std::string(remote->address(), half), written);
    EXPECT_EQ(std::string(local->address() + half, half), read);
  }
  bool Ended(uint64_t cookie) const {
    return std::any_of(a_.handler->transfers.begin(), a_.handler->transfers.end(),
                       [&](const auto& one) { return one.first == cookie && one.second.ok(); });
  }

  unsigned seed_ = 0;
  uint64_t cookie_ = 0;
};

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

class FailingPorts : public SeveralPorts, public ::testing::WithParamInterface<Isolation> {
 protected:
  // Transfers of a MiB take a third of a second with both ports.
  void ConnectSlow() {
    Settings settings = Wide();
    settings.verbs.isolation = GetParam();
    settings.peer_timeout = 5 * kSecond;
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    ConnectTwoByTwo(settings);
    ExpectToUse(true, "fake_1:1", "fake_3:1");
    SetFake("bandwidth", "3000000");
  }
};

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

TEST_P(FailingPorts, ACutCableIsNoticedByATransferAndTriedAgainLater) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  MoveWhile([&] {
    PollFor(30 * kMillisecond);
    SetFake("fake_3.network", "7");
  });
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  SetFake("fake_3.network", "0");
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

INSTANTIATE_TEST_SUITE_P(, FailingPorts, ::testing::Values(Isolation::kAddress, Isolation::kPeer),
                         [](const auto& info) {
                           return info.param == Isolation::kPeer ? "Windows" : "Keys";
                         });

TEST_F(SeveralPorts, ThePortOfNotificationsThatGoesDownIsReplacedByAnotherChannel) {
  Settings settings = Wide();
  settings.peer_timeout = 200 * kMillisecond;
  ConnectTwoByTwo(settings);
  ExpectToUse(true, "fake_1:1", "fake_3:1");
  SetFake("fake_2:1.port_state", "down");
  ASSERT_TRUE(TalkUntilClosed());
  Drop();
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToMove();
  EXPECT_EQ(b_.channel->Route().rfind("fake_3:1 ", 0), 0u) << b_.channel->Route();
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
