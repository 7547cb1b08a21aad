// How ports address each other: with or without a global route header, by the right kind of GID,
// and by what their tables say now.

#include <gtest/gtest.h>

#include <string>

#include "fabric/verbs/reach.h"
#include "several_ports.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::OnFake;
using testing::SetFake;
using testing::Side;

// One port each.
class VerbsAddressTest : public testing::VerbsPairTest {
 protected:
  void SetUp() override {
    VerbsPairTest::SetUp();
    SetFake("devices", "fake_0,fake_1");
  }
  void OpenBoth(Settings settings = OnFake()) {
    settings.verbs.devices = "fake_0";
    ASSERT_TRUE(OpenDevice(settings, &a_.device).ok());
    settings.verbs.devices = "fake_1";
    ASSERT_TRUE(OpenDevice(settings, &b_.device).ok());
  }
  // Why the first does not reach the second.
  Status WhyNot() {
    EXPECT_TRUE(OpenChannel(&a_).ok());
    EXPECT_TRUE(OpenChannel(&b_).ok());
    return a_.device->Reaches(b_.channel->Address());
  }
};

TEST_F(VerbsAddressTest, PortsThatShareALidGetAGlobalHeader) {
  SetFake("link_layer", "infiniband");
  SetFake("lid", "7");
  SetFake("grh_required", "1");
  OpenBoth();
  ExpectToWork();
}

TEST_F(VerbsAddressTest, OneThatNeedsTheHeaderIsEnough) {
  SetFake("link_layer", "infiniband");
  SetFake("fake_1.grh_required", "1");
  OpenBoth();
  ExpectToWork();
}

TEST_F(VerbsAddressTest, AnotherSubnetOfInfiniBandIsReachedByItsRouters) {
  SetFake("link_layer", "infiniband");
  SetFake("fake_0.gids", "ib:fe80::1,ib:fec0:0:11:1::1");
  SetFake("fake_1.gids", "ib:fe80::2,ib:fec0:0:22:2::1");
  OpenBoth();
  ExpectToWork();
}

TEST_F(VerbsAddressTest, RoutersThatAreNotKnownAreTheReason) {
  SetFake("link_layer", "infiniband");
  SetFake("fake_0.gids", "ib:fec0:0:0:1::1");
  SetFake("fake_1.gids", "ib:fec0:0:0:2::1");
  OpenBoth();
  ExpectHas(WhyNot(), "it is on another subnet of InfiniBand (GID fec0:0:0:2::1)");
}

TEST_F(VerbsAddressTest, GidsOfTwoKindsAreTheReason) {
  SetFake("fake_0.gids", "rocev1:10.0.0.1");
  SetFake("fake_1.gids", "rocev2:10.0.0.2");
  OpenBoth();
  ExpectHas(WhyNot(), "one GID is RoCE v1, the other RoCE v2");
}

TEST(Destination, TheTrafficClassOfRoceIsTheUsualOne) {
  Port own;
  own.ethernet = true;
  own.gid.type = GidType::kRoceV2;
  ChannelAddress peer;
  peer.ethernet = true;
  const auto traffic_class = [&](int setting) {
    ibv_ah_attr destination = {};
    SetDestination(own, peer, setting, &destination);
    return int{destination.grh.traffic_class};
  };
  EXPECT_EQ(traffic_class(-1), 106);
  EXPECT_EQ(traffic_class(0), 0);
  EXPECT_EQ(traffic_class(104), 104);
  own.gid.type = GidType::kRoceV1;
  EXPECT_EQ(traffic_class(-1), 0);
}

// --- What changes while the ports are open ---

class ChangesOfAddresses : public VerbsAddressTest {
 protected:
  // What the second port says of itself, once that has changed.
  std::string NewText(const std::string& before) {
    EXPECT_TRUE(PollUntil([&] { return b_.device->Ports()[0].text != before; })) << before;
    return b_.device->Ports()[0].text;
  }
  std::string Text() { return b_.device->Ports()[0].text; }
};

TEST_F(ChangesOfAddresses, NewChannelsUseTheNewGid) {
  SetFake("fake_1.gids", "rocev2:10.0.0.2");
  OpenBoth();
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string before = Text();
  SetFake("fake_1.gids", "none,rocev2:10.0.0.77");
  ExpectHas(NewText(before), "GID 1 = 10.0.0.77");
  ASSERT_TRUE(TalkUntilClosed()) << "its address is gone";
  ExpectToWork();
}

TEST_F(ChangesOfAddresses, NewChannelsUseTheNewLid) {
  SetFake("link_layer", "infiniband");
  OpenBoth();
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string before = Text();
  SetFake("fake_1.lid", "99");
  ExpectHas(NewText(before), "LID 99");
  ASSERT_TRUE(TalkUntilClosed());
  ExpectToWork();
}

TEST_F(ChangesOfAddresses, NewChannelsUseTheNewPlaceOfThePkey) {
  SetFake("pkeys", "0xffff,0x8003");
  Settings settings = OnFake();
  settings.verbs.pkey = 3;
  OpenBoth(settings);
  ASSERT_NO_FATAL_FAILURE(Connect());
  SetFake("pkeys", "0xffff,0x8005,0x8003");
  PollFor(300 * kMillisecond);
  ExpectToWork();
}

TEST_F(ChangesOfAddresses, ASubnetManagerMayTellNothingButItself) {
  SetFake("link_layer", "infiniband");
  SetFake("quiet", "1");
  OpenBoth();
  for (const char* event : {"sm_change", "client_reregister"}) {
    const std::string before = Text();
    SetFake("fake_1.lid", event[0] == 's' ? "55" : "56");
    SetFake("raise", event);
    NewText(before);
    ExpectToWork();
  }
}

TEST_F(ChangesOfAddresses, AnAddressThatStaysIsKept) {
  SetFake("fake_1.gids", "rocev2:10.0.0.2");
  OpenBoth();
  const std::string before = Text();
  SetFake("fake_1.gids", "rocev2:10.1.0.2,rocev2:10.0.0.2");
  ExpectHas(NewText(before), "GID 1 = 10.0.0.2");
  ExpectToWork();
}

TEST_F(ChangesOfAddresses, ABetterKindThatComesLaterIsUsed) {
  SetFake("fake_1.gids", "rocev2:fe80::2");
  OpenBoth();
  ExpectHas(WhyNot(), "one GID is IPv4, the other IPv6");
  Drop();
  const std::string before = Text();
  SetFake("fake_1.gids", "rocev2:fe80::2,rocev2:10.0.0.2");
  ExpectHas(NewText(before), "10.0.0.2");
  ExpectToWork();
}

// --- Several ports ---

class SeveralRails : public testing::SeveralPorts {};

// Each has a subnet manager of its own, so all have the same prefix and the same LIDs, and packets
// of one do not reach the others. Tasks on different sockets prefer different ones.
TEST_F(SeveralRails, IsolatedOnesOfInfiniBandMatchByTheirNames) {
  SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
  SetFake("link_layer", "infiniband");
  SetFake("gids", "ib:fe80::1");
  SetFake("lid", "1");
  for (int i = 0; i < 4; ++i) {
    const std::string number = std::to_string(i);
    SetFake(("fake_" + number + ".network").c_str(), number);
  }
  ASSERT_TRUE(OpenDevice(Wide("fake_0,fake_1,fake_2,fake_3"), &a_.device).ok());
  ASSERT_TRUE(OpenDevice(Wide("fake_2,fake_3,fake_0,fake_1"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToMove();
  for (const char* device : {"fake_0", "fake_1", "fake_2", "fake_3"}) {
    EXPECT_GT(BytesOf(device), kLength / 8) << device;
  }
}

// One of several does not get its packets through.
TEST_F(SeveralRails, ARailOfAnotherNetworkIsLeftAndTheOthersServe) {
  SetFake("devices", "fake_0,fake_1,fake_2");
  SetFake("fake_2.network", "7");
  ASSERT_TRUE(OpenDevice(Wide("fake_0,fake_1"), &a_.device).ok());
  ASSERT_TRUE(OpenDevice(Wide("fake_0,fake_2"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToMove();
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
