// How the verbs fabric fails: whatever the card or the way to the peer does, both sides learn the
// reason, once and soon, and nothing is left behind.

#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <thread>

#include "fabric/verbs/errors.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::ExpectLacks;
using testing::Fake;
using testing::FakeStats;
using testing::OnFake;
using testing::SetFake;
using testing::Side;

constexpr char kFlush[] = "IBV_WC_WR_FLUSH_ERR";

class VerbsTest : public testing::VerbsPairTest {};

// --- Completions that fail ---

class EachStatus : public VerbsTest, public ::testing::WithParamInterface<ibv_wc_status> {};

TEST_P(EachStatus, EndsBothSidesWithItsSentence) {
  ConnectedPair();
  ASSERT_TRUE(a_.Notify("before").ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->delivered == 1; }));
  Fake().complete_with(GetParam(), 77, 1);
  ASSERT_TRUE(a_.Notify("never").ok());
  for (int i = 0; i < 40; ++i) a_.Notify("flushed").IgnoreError();
  const Nanos begin = Now();
  ASSERT_TRUE(TalkUntilClosed());
  EXPECT_LT(Now() - begin, 2 * kSecond);
  ExpectClosedOnce();
  ExpectHas(
      a_.handler->reason,
      CompletionError(GetParam(), 77, "a notification of 64 bytes", a_.channel->Route()).message());
  ExpectLacks(b_.handler->reason, kFlush);
  EXPECT_EQ(a_.handler->delivered, 1u);
  EXPECT_EQ(b_.handler->notes.size(), 1u);
  ExpectNothingLeft();
  ExpectToWork();
}

INSTANTIATE_TEST_SUITE_P(, EachStatus,
                         ::testing::Values(IBV_WC_LOC_PROT_ERR, IBV_WC_REM_ACCESS_ERR,
                                           IBV_WC_RETRY_EXC_ERR, IBV_WC_GENERAL_ERR),
                         [](const auto& info) { return "Status" + std::to_string(info.param); });

TEST_F(VerbsTest, TheOperationThatFailedIsNamed) {
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  Fake().complete_with(IBV_WC_GENERAL_ERR, 0, 2);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 10000}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(TalkUntilClosed());
  ExpectHas(a_.handler->reason, "a write of 4096 bytes failed (fake_0:1 ");
  ExpectHas(a_.handler->reason, a_.channel->Route());
  EXPECT_TRUE(a_.handler->transfers.empty());
  ExpectClosedOnce();
}

TEST_F(VerbsTest, MemoryThatThePeerGaveBackIsRefusedByItsCard) {
  ConnectedPair();
  auto remote = Shared(b_);
  const auto local = Allocate(a_);
  const RemoteSpan span = {remote->key(), 0, 100};
  remote.reset();  // and a has not heard it yet
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 1).ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectHas(a_.handler->reason, "IBV_WC_REM_ACCESS_ERR");
  ExpectHas(b_.handler->reason, EventSentence(IBV_EVENT_QP_ACCESS_ERR));
  ExpectClosedOnce();
}

// --- Verbs that fail ---

struct Failing {
  const char* verb;
  int nth;
  int error;
  Code code;
};

TEST_F(VerbsTest, ADeviceThatCannotBeOpenedIsAnErrorAndLeavesNothing) {
  for (const Failing& failing :
       {Failing{"open_device", 1, EACCES, Code::kPermissionDenied},
        Failing{"query_device", 1, EIO, Code::kUnavailable},
        Failing{"alloc_pd", 1, ENOMEM, Code::kResourceExhausted},
        Failing{"create_comp_channel", 1, EMFILE, Code::kResourceExhausted}}) {
    Fake().fail(failing.verb, failing.nth, failing.error);
    const Status status = OpenDevice(OnFake(), &a_.device);
    EXPECT_EQ(status.code(), failing.code) << status.message();
    ExpectHas(status, std::string("ibv_") + failing.verb);
    EXPECT_EQ(FakeStats().contexts + FakeStats().pds, 0u) << failing.verb;
  }
  OpenDevices();
  ExpectToWork();
}

TEST_F(VerbsTest, AChannelThatCannotBeOpenedIsAnErrorAndLeavesNothing) {
  OpenDevices();
  for (const Failing& failing : {Failing{"create_cq", 1, ENOMEM, Code::kResourceExhausted},
                                 Failing{"create_qp", 1, ENOMEM, Code::kResourceExhausted},
                                 Failing{"create_qp", 1, ENOSYS, Code::kUnimplemented},
                                 Failing{"modify_qp", 1, EINVAL, Code::kInvalidArgument},
                                 Failing{"reg_mr", 1, ENOMEM, Code::kResourceExhausted}}) {
    Fake().fail(failing.verb, failing.nth, failing.error);
    const Status status = OpenChannel(&a_);
    EXPECT_EQ(status.code(), failing.code) << status.message();
    EXPECT_EQ(a_.channel, nullptr);
    EXPECT_EQ(FakeStats().mrs, 0u) << failing.verb;
    EXPECT_TRUE(PollUntil([] { return FakeStats().qps == 0; })) << failing.verb;
  }
  ExpectToWork();
}

TEST_F(VerbsTest, AChannelThatCannotConnectIsAnErrorAndEnds) {
  OpenDevices();
  for (const Failing& failing : {Failing{"reg_mr", 1, ENOMEM, Code::kResourceExhausted},
                                 Failing{"post_recv", 1, EIO, Code::kUnavailable},
                                 Failing{"modify_qp", 1, ETIMEDOUT, Code::kUnavailable},
                                 Failing{"modify_qp", 2, EINVAL, Code::kInvalidArgument}}) {
    ASSERT_TRUE(OpenChannel(&a_).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    Poll();
    Fake().fail(failing.verb, failing.nth, failing.error);
    const Status status = a_.channel->Connect(b_.channel->Address(), Role::kActive);
    ExpectHas(status, std::string("ibv_") + failing.verb);
    EXPECT_EQ(status.code(), failing.code) << status.message();
    a_.channel->Close(status);
    b_.channel->Close(Status(Code::kCancelled, "nobody came"));
    ASSERT_TRUE(PollUntil([&] { return BothClosed(); }, kSecond));
    ExpectHas(a_.handler->reason, status.message());
    ExpectClosedOnce();
    ExpectNothingLeft();
  }
  ExpectToWork();
}

TEST_F(VerbsTest, AVerbThatFailsLaterEndsWhatItConcernsAndNothingHangs) {
  OpenDevices();
  for (const char* verb : {"post_send", "post_recv", "poll_cq", "req_notify_cq"}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    Fake().fail(verb, 3, EIO);
    const Nanos begin = Now();
    ASSERT_TRUE(PollUntil([&] {
      for (Side* side : {&a_, &b_}) {
        if (!side->handler->closed) side->Notify("more").IgnoreError();
        side->device->ArmNotification();
      }
      return BothClosed();
    })) << verb;
    EXPECT_LT(Now() - begin, 2 * kSecond) << verb;
    ExpectClosedOnce();
    const Status& first = a_.handler->reason.message().find(verb) != std::string::npos
                              ? a_.handler->reason
                              : b_.handler->reason;
    ExpectHas(first, std::string("ibv_") + verb);
    ExpectNothingLeft();
  }
  ExpectToWork();
}

TEST_F(VerbsTest, ACompletionQueueThatBreaksEndsItsChannelsAndServesNoOthers) {
  ConnectedPair();
  SetFake("raise", "cq_err");
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  for (Side* side : {&a_, &b_}) ExpectHas(side->handler->reason, "completion queue");
  ExpectClosedOnce();
  ExpectNothingLeft();
  ExpectToWork();
  EXPECT_EQ(FakeStats().cqs, 4u) << "a broken one and a new one each";
}

TEST_F(VerbsTest, ACardThatSendsNothingInlineWillDo) {
  SetFake("max_inline", "0");
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  local->address()[0] = 'w';
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 9, 1}, 1).ok());
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(a_.Notify(std::to_string(i)).ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 500; }));
  EXPECT_EQ(b_.handler->notes.back(), "499");
  EXPECT_EQ(remote->address()[9], 'w');
}

// --- The way to the peer ---

// Optics that flap, or a spine that is routed anew.
TEST_F(VerbsTest, ByDefaultABreakOfSecondsLosesNothing) {
  SetFake("retry_ms", "0");  // as the queue pair was told
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  local->address()[0] = 'w';
  SetFake("flap_ms", "2500");
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 1}, 1).ok());
  ASSERT_TRUE(a_.Notify("late").ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1 || BothClosed(); }));
  EXPECT_FALSE(a_.handler->closed) << a_.handler->reason.message();
  EXPECT_EQ(remote->address()[0], 'w');
}

TEST_F(VerbsTest, ACardGivesUpAfterAsManyRetriesAsTheSettingsSay) {
  SetFake("retry_ms", "0");
  Settings settings = DefaultSettings();
  settings.verbs.retry_timeout = 16 * kMillisecond;
  settings.verbs.retries = 3;
  ConnectedPair(settings);
  SetFake("flap_ms", "2500");
  ASSERT_TRUE(a_.Notify("lost").ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed > 0; }));
  ExpectHas(a_.handler->reason, "IBV_WC_RETRY_EXC_ERR");
}

TEST_F(VerbsTest, ALongBreakOfThePathEndsBothSides) {
  ConnectedPair();
  Fake().break_path(true);
  for (Side* side : {&a_, &b_}) ASSERT_TRUE(side->Notify("lost").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }, 2 * kSecond));
  for (Side* side : {&a_, &b_}) {
    ExpectHas(side->handler->reason, "IBV_WC_RETRY_EXC_ERR");
    ExpectHas(side->handler->reason, "see whether the peer lives and the link is up");
    EXPECT_EQ(side->handler->delivered, 0u);
  }
  ExpectClosedOnce();
  ExpectNothingLeft();
  Fake().break_path(false);
  ExpectToWork();
}

// Soft-RoCE can stop its retries and report nothing. The channel closes at both ends, although the
// peer had sent nothing.
TEST_F(VerbsTest, ACardThatReportsNeitherSuccessNorFailureEndsBothSides) {
  Settings settings = OnFake();
  settings.peer_timeout = 600 * kMillisecond;
  settings.verbs.retry_timeout = 10 * kMillisecond;
  SetFake("retry_ms", "600000");
  ConnectedPair(settings);
  Fake().break_path(true);
  const Nanos begin = Now();
  ASSERT_TRUE(a_.Notify("held").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_GE(Now() - begin, settings.peer_timeout);
  for (Side* side : {&a_, &b_}) {
    ExpectHas(side->handler->reason, "nothing that fake_0:1 carries has ended or failed");
    EXPECT_EQ(side->handler->delivered, 0u);
  }
  ExpectClosedOnce();
  ExpectNothingLeft();
  Fake().break_path(false);
  ExpectToWork();
}

TEST_F(VerbsTest, APortThatGoesDownAndComesBackSoonLosesNothing) {
  SetFake("retry_ms", "5000");
  ConnectedPair();
  Fake().port_event(false);
  ASSERT_TRUE(a_.Notify("waits").ok());
  PollUntil([] { return false; }, 150 * kMillisecond);
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
  Fake().port_event(true);
  EXPECT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }));
  SetFake("retry_ms", "60");
  Fake().port_event(false);
  ASSERT_TRUE(TalkUntilClosed());
  ExpectClosedOnce();
  Fake().port_event(true);
}

TEST_F(VerbsTest, ACardThatDiesEndsAllItsChannels) {
  ConnectedPair();
  PollFor(10 * kMillisecond);  // so that its event is all that tells of it
  std::vector<std::shared_ptr<testing::Recorder>> handlers;
  std::vector<std::shared_ptr<Channel>> channels(5);
  for (auto& channel : channels) {
    handlers.push_back(std::make_shared<testing::Recorder>());
    ASSERT_TRUE(a_.device->Open(handlers.back(), &channel).ok());
  }
  Fake().device_fatal();
  ASSERT_TRUE(PollUntil(
      [&] {
        int closes = a_.handler->closed + b_.handler->closed;
        for (const auto& handler : handlers) closes += handler->closed;
        return closes == 7;
      },
      3 * kSecond));
  for (Side* side : {&a_, &b_}) {
    ExpectHas(side->handler->reason, EventSentence(IBV_EVENT_DEVICE_FATAL));
  }
  ExpectClosedOnce();
  channels.clear();
  const Status again = OpenChannel(&a_);
  EXPECT_EQ(again.code(), Code::kUnavailable) << again.message();
  Drop();
  a_.device.reset();
  b_.device.reset();
  OpenDevices();
  ExpectToWork();
}

// --- Closing ---

TEST_F(VerbsTest, ThePeerHearsTheReasonAlsoFromAnotherThread) {
  OpenDevices();
  const Nanos begin = Now();
  for (int round = 0; round < 20; ++round) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    // Of what nobody waits for no completion comes.
    for (Side* side : {&a_, &b_}) {
      ASSERT_TRUE(side->Notify("lazy", Urgency::kLazy).ok());
      ASSERT_TRUE(side->channel->Flush().ok());
    }
    std::thread closer([&] { a_.channel->Close(Status(Code::kAborted, "enough")); });
    const bool closed = PollUntil([&] { return BothClosed(); }, 10 * kSecond);
    closer.join();
    ASSERT_TRUE(closed);
    ExpectHas(a_.handler->reason, "enough");
    ExpectHas(b_.handler->reason, "the peer closed the channel: enough");
    ExpectClosedOnce();
    Drop();
  }
  EXPECT_LT(Now() - begin, 15 * kSecond) << "the timeout was needed";  // a second per round
}

TEST_F(VerbsTest, ThePeerHearsTheReasonUnderAFlood) {
  OpenDevices();
  for (const bool patient : {true, false}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    // More than the ring holds, or so many that no further batch may be sent.
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(a_.Notify(std::string(patient ? 1 : 4000, 'a')).ok());
      ASSERT_TRUE(b_.Notify(std::string(patient ? 1 : 4000, 'b')).ok());
    }
    a_.channel->Close(Status(Code::kAborted, "enough"));
    const Nanos until = Now() + 20 * kMillisecond;
    while (Now() < until) a_.device->Poll();
    ASSERT_TRUE(PollUntil([&] { return BothClosed(); }, 10 * kSecond));
    ExpectHas(a_.handler->reason, "enough");
    ExpectHas(b_.handler->reason, "enough");
    ExpectClosedOnce();
    Drop();
  }
}

TEST_F(VerbsTest, WithADeadPathClosingTakesNoLongerThanItsTimeout) {
  SetFake("retry_ms", "60000");
  ConnectedPair();
  Fake().break_path(true);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(a_.Notify("pending").ok());
  const Nanos begin = Now();
  a_.channel->Close(Status(Code::kAborted, "enough"));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  EXPECT_LT(Now() - begin, 10 * kSecond) << "it waited for the card";
  ExpectHas(a_.handler->reason, "enough");
  b_.channel->Close(Status(Code::kAborted, "enough too"));
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
}

TEST_F(VerbsTest, AChannelWhoseHandlerIsGoneCloses) {
  ConnectedPair();
  a_.handler.reset();
  ASSERT_TRUE(PollUntil([&] { return b_.handler->closed; }, 2 * kSecond));
  ExpectHas(b_.handler->reason, "the user of this channel has gone");
  EXPECT_TRUE(PollUntil([] { return FakeStats().qps == 0; }));
}

// --- What is claimed ---

// Its card confirms what it will never handle.
TEST_F(VerbsTest, WhatReachesAPeerThatGaveUpConnectingIsNotDelivered) {
  OpenDevices();
  for (const bool gives_up : {true, false}) {
    for (Side* side : {&a_, &b_}) ASSERT_TRUE(OpenChannel(side).ok());
    ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
    const Nanos deadline = Now() + 10 * kSecond;
    while (!b_.handler->connected && Now() < deadline) PollOne(b_);
    ASSERT_TRUE(b_.handler->connected);
    ASSERT_TRUE(b_.Notify("the first").ok());
    for (const Nanos end = Now() + 20 * kMillisecond; Now() < end;) PollOne(b_);
    EXPECT_EQ(b_.handler->delivered, 0u);
    if (gives_up) {
      a_.channel->Close(Status(Code::kDeadlineExceeded, "not in time"));
      ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
      ExpectHas(b_.handler->reason, "not in time");
    } else {
      ASSERT_TRUE(PollUntil([&] { return b_.handler->delivered == 1; }));
    }
    EXPECT_EQ(a_.handler->notes.size(), b_.handler->delivered);
    Drop();
  }
}

// Whatever breaks and whenever: what was received is a gapless beginning of what was sent, and at
// least what the sender was told.
TEST_F(VerbsTest, OnDeliveredNeverClaimsWhatDidNotArrive) {
  constexpr int kStatuses[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR, IBV_WC_GENERAL_ERR,
                               IBV_WC_REM_ACCESS_ERR};
  std::mt19937 random(7);
  OpenDevices();
  SetFake("retry_ms", "20");
  for (int round = 0; round < 120; ++round) {
    SCOPED_TRACE(round);
    ASSERT_NO_FATAL_FAILURE(Connect());
    const int way = static_cast<int>(random() % 4);
    const int at = static_cast<int>(random() % 300);
    if (way == 0) Fake().complete_with(kStatuses[random() % 4], 0, 1 + static_cast<int>(at));
    const size_t length = 8 + random() % 600;
    const Nanos deadline = Now() + 10 * kSecond;
    std::string text(length, '.');
    int sent[2] = {};
    for (int i = 0; !BothClosed(); ++i) {
      ASSERT_LT(Now(), deadline);
      if (i == at && way == 1) Fake().break_path(true);
      if (i == at && way == 2) b_.channel->Close(Status(Code::kAborted, "enough"));
      if (i == at && way == 3) a_.channel->Close(Status(Code::kAborted, "enough"));
      for (Side* side : {&a_, &b_}) {
        if (i < at + 300 || i % 1000 == 0) {
          int& number = sent[side == &a_ ? 0 : 1];
          text.replace(0, 8, std::to_string(10000000 + number));
          const Urgency urgency = i % 3 == 0 ? Urgency::kLazy : Urgency::kWake;
          number += side->Notify(text, urgency).ok() ? 1 : 0;
        }
        if (random() % 4 == 0) side->device->Poll();
      }
    }
    for (const auto& [from, to] : {std::pair{&a_, &b_}, std::pair{&b_, &a_}}) {
      const std::vector<std::string>& notes = to->handler->notes;
      ASSERT_GE(notes.size(), from->handler->delivered);
      for (size_t i = 0; i < notes.size(); ++i) {
        ASSERT_EQ(notes[i].substr(0, 8), std::to_string(10000000 + i));
      }
    }
    ExpectClosedOnce();
    Fake().break_path(false);
    Drop();
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
