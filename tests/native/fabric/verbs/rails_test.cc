// Several ports: what each of them carries, and what happens when one goes down.

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fabric/host/region.h"
#include "fabric/verbs/memory.h"
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

// --- What they carry ---

TEST_F(SeveralPorts, LargeTransfersAreStripedAndSmallOnesAreNot) {
  SetFake("devices", "fake_0,fake_1");
  ConnectedPair(Wide());
  ExpectToUse(true, "fake_1:1");
  ExpectToMove();
  EXPECT_GE(BytesOf("fake_0"), kLength / 4);
  EXPECT_GE(BytesOf("fake_1"), kLength / 4) << "of a write and a read";
  const uint64_t before = BytesOf("fake_1");
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (uint64_t i = 0; i < 8; ++i) {
    const RemoteSpan span = {remote->key(), i * 1000, 1000};
    ASSERT_TRUE(a_.channel->Write(local->address(), span, 100 + i).ok());
  }
  ASSERT_TRUE(a_.Notify("small").ok());
  ASSERT_TRUE(PollUntil([&] { return Ended(107); }));
  EXPECT_LT(BytesOf("fake_1") - before, 1000u);
}

// Each channel has the port that reaches the peer.
TEST_F(SeveralPorts, AChannelUsesNoMorePortsThanAreAskedFor) {
  SetFake("devices", "fake_0,fake_1");
  Settings settings = Wide();
  settings.verbs.ports = 1;
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(settings));
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), 0u);
  SetFake("fake_0.port_state", "down");
  ASSERT_TRUE(TalkUntilClosed());
  ASSERT_NO_FATAL_FAILURE(ExpectToWork());
  ExpectToMove();
  EXPECT_GT(BytesOf("fake_1"), kLength) << "the one that works";
}

TEST_F(SeveralPorts, PortsOnDifferentSubnetsDoNotConfuseEachOther) {
  SetFake("ports", "2");
  SetFake("fake_0:2.network", "7");  // and its address is on another subnet
  ASSERT_TRUE(OpenDevice(Wide("fake_0:1,fake_0:2"), &a_.device).ok());
  ASSERT_TRUE(OpenDevice(Wide("fake_0:2,fake_0:1"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToUse(true, "fake_0:2");
  ExpectToMove();
  EXPECT_GE(BytesOf("fake_0", 2), kLength / 4);
  Drop();
  b_.device.reset();
  ASSERT_TRUE(OpenDevice(Wide("fake_0:2"), &b_.device).ok());
  ASSERT_NO_FATAL_FAILURE(Connect());
  const uint64_t before = BytesOf("fake_0", 2);
  ExpectToMove();
  EXPECT_GE(BytesOf("fake_0", 2) - before, 2 * kLength) << "the only port that reaches the peer";
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

TEST_F(SeveralPorts, MemoryThatTheFirstPortRefusesGoesByTheOthers) {
  SetFake("devices", "fake_0,fake_1");
  ConnectedPair(Wide());
  ExpectToUse(true, "fake_1:1");
  SetFake("fake_0.max_mr", "1");  // there are more
  ExpectToMove();
  EXPECT_LT(BytesOf("fake_0"), kLength / 4);
}

TEST_F(SeveralPorts, AReadIntoMemoryThatOnePortRefusesGoesByTheOthers) {
  SetFake("devices", "fake_0,fake_1");
  ConnectedPair(Wide());
  ExpectToUse(true, "fake_1:1");
  const auto remote = Shared(b_);
  const auto read = [&](Region* local) {
    Fill(remote.get(), ++seed_);
    ASSERT_TRUE(a_.channel->Read({remote->key(), 0, kLength}, local->address(), ++cookie_).ok());
    ASSERT_TRUE(PollUntil([&] { return Ended(cookie_); }));
    EXPECT_EQ(std::memcmp(remote->address(), local->address(), kLength), 0);
  };
  const auto first = Allocate(a_);
  const auto second = Allocate(a_);
  read(first.get());
  SetFake("fake_1.max_mr", "1");  // there are more
  read(second.get());
  const uint64_t before = BytesOf("fake_1");
  read(first.get());
  EXPECT_GE(BytesOf("fake_1") - before, kLength / 4) << "it still serves";
  ExpectToUse(true, "fake_1:1");
}

// Beside shared memory, a region is registered when it is first used.
TEST_F(SeveralPorts, MemoryThatNoPortTakesIsRefusedAtTheCall) {
  for (const char* devices : {"fake_0", "fake_0,fake_1"}) {
    SCOPED_TRACE(devices);
    SetFake("devices", devices);
    ASSERT_NO_FATAL_FAILURE(ConnectedPair(Wide()));
    auto remote = Shared(b_);
    const RemoteSpan span = {remote->key(), 0, kLength};
    std::unique_ptr<host::MemoryRegion> local;
    const uint64_t key = RegisteredMemory::NewKey();
    ASSERT_TRUE(
        host::MemoryRegion::Create(key, kLength, Access::kRemoteReadWrite, nullptr, &local).ok());
    ASSERT_TRUE(a_.device->Adopt(local.get()).ok());
    SetFake("max_mr", "1");  // there are more
    EXPECT_EQ(a_.channel->Write(local->address(), span, ++cookie_).code(),
              Code::kResourceExhausted);
    ASSERT_TRUE(a_.channel->Read(span, local->address(), ++cookie_).ok());
    ASSERT_TRUE(PollUntil([&] { return !a_.handler->transfers.empty(); }));
    EXPECT_EQ(a_.handler->transfers.back().first, cookie_);
    EXPECT_EQ(a_.handler->transfers.back().second.code(), Code::kResourceExhausted);
    ExpectToTalk();
    EXPECT_FALSE(a_.handler->closed) << a_.handler->reason.message();
    local.reset();
    remote.reset();
    DropDevices();
    SetUp();
  }
}

TEST_F(SeveralPorts, AChannelDoesWithoutAPortThatHasNoQueuePairsLeft) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("fake_1.max_qp", "0");
  ConnectedPair(Wide());
  ExpectToMove();
  EXPECT_EQ(BytesOf("fake_1"), 0u);
}

// --- Ports that fail and return ---

TEST_F(FailingPorts, APortThatGoesDownIsLeftAndTakenBack) {
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
    EXPECT_LT(BytesOf("fake_1") + BytesOf("fake_3") - before, 1000u);
    SetFake(state.c_str(), "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_GT(BytesOf("fake_1") + BytesOf("fake_3"), before + kLength / 4);
    SetFake("bandwidth", "3000000");
  }
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

// Soft-RoCE keeps queue pairs of an interface that is down, and those who destroy them.
TEST_F(FailingPorts, TheThreadThatPollsDoesNotWaitForAQueuePairThatTheCardKeeps) {
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
TEST_F(FailingPorts, TheThreadThatPollsDoesNotWaitForAQueuePairToConnect) {
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

TEST_F(FailingPorts, AQueuePairThatConnectsDoesNotKeepTheChannel) {
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
TEST_F(FailingPorts, AnInterfaceThatGoesDownIsNoticedByATransfer) {
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

TEST_F(FailingPorts, AChannelBeginsWithoutAPortThatIsUnreachable) {
  Settings settings = Wide();
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

TEST_F(FailingPorts, TheLogSaysOnceWhyAPortIsNotTakenBack) {
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

TEST_F(FailingPorts, AQueuePairThatDoesNotConnectIsTriedAgainLater) {
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

TEST_F(FailingPorts, ACutCableIsNoticedByATransferAndTriedAgainLater) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  CutFurtherPathForAWhile();
}

// Soft-RoCE stops its retries, and reports nothing, if the interface holds them.
TEST_F(FailingPorts, APathThatHoldsPacketsForEverIsLeft) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow(2 * kSecond));
  SetFake("retry_ms", "600000");
  CutFurtherPathForAWhile();
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
