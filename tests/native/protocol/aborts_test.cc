// A step that one task aborts ends for everybody who waits for a tensor of that task, whenever they
// begin to wait and whenever their link comes up; and for nobody else.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "protocol/step_aborts.h"
#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::Eventually;
using testing::Payload;
using testing::ProtocolTest;
using testing::Task;
using testing::Tensor;
using testing::TestSettings;

class AbortsTest : public ProtocolTest {
 protected:
  // Linked, so that nothing that follows waits for the link.
  void Link(Task& from, Task& to) {
    const int64_t step = --linking_step_;
    ASSERT_TRUE(Send(from, to, Tensor(step, "link", Bytes(10, 1), {})).ok());
    ASSERT_TRUE(Receive(to, from, step, "link")->Get().status.ok());
  }
  static void ExpectAborted(const std::shared_ptr<Catcher>& catcher, const std::string& error) {
    const Delivery delivery = catcher->Get();
    EXPECT_EQ(delivery.status.code(), Code::kAborted) << delivery.status.message();
    EXPECT_EQ(delivery.error, error);
    EXPECT_EQ(catcher->deliveries(), 1);
  }
  void ExpectDelivered(Task& from, Task& to, int64_t step, const std::string& key) {
    ASSERT_TRUE(Send(from, to, Tensor(step, key, Bytes(10, 1), {})).ok());
    const Delivery delivery = Receive(to, from, step, key)->Get();
    EXPECT_TRUE(delivery.status.ok()) << delivery.status.message();
  }

 private:
  int64_t linking_step_ = 0;
};

TEST_F(AbortsTest, ReachWhoeverWaitsThenAndLater) {
  Task a("a"), b("b");
  Link(a, b);
  auto waiting = Receive(b, a, 1, "k");
  auto other = Receive(b, a, 1, "other");
  a.endpoint().AbortStep(1, "it failed");
  ExpectAborted(waiting, "it failed");
  ExpectAborted(other, "it failed");
  ExpectAborted(Receive(b, a, 1, "later"), "it failed");
}

TEST_F(AbortsTest, ReachTasksWhoseLinksComeUpLater) {
  Task a("a"), late("late");
  a.endpoint().AbortStep(1, "it failed");
  ExpectAborted(Receive(late, a, 1, "k"), "it failed");
}

TEST_F(AbortsTest, TheFirstErrorCounts) {
  Task a("a"), b("b");
  a.endpoint().AbortStep(1, "the cause");
  a.endpoint().AbortStep(1, "a consequence");
  ExpectAborted(Receive(b, a, 1, "k"), "the cause");
}

TEST_F(AbortsTest, LeaveOtherStepsAndOtherTasksAlone) {
  Task a("a"), b("b"), c("c");
  Link(a, b);
  Link(c, b);
  auto of_c = Receive(b, c, 1, "k of c");
  auto of_a = Receive(b, a, 1, "k of a");
  auto of_step_2 = Receive(b, a, 2, "k of a");
  a.endpoint().AbortStep(1, "it failed");
  ExpectAborted(of_a, "it failed");
  ASSERT_TRUE(Send(c, b, Tensor(1, "k of c", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Send(a, b, Tensor(2, "k of a", Bytes(10, 1), {})).ok());
  EXPECT_TRUE(of_c->Get().status.ok());
  EXPECT_TRUE(of_step_2->Get().status.ok());
}

// A collective may end here with it: the peer had ended its part.
TEST_F(AbortsTest, WhatWasSentBeforeIsStillThere) {
  Task a("a"), b("b");
  Link(a, b);
  ASSERT_TRUE(Send(a, b, Tensor(1, "sent", Bytes(10, 1), {})).ok());
  a.endpoint().AbortStep(1, "it failed");
  ExpectAborted(Receive(b, a, 1, "not sent"), "it failed");
  EXPECT_TRUE(Receive(b, a, 1, "sent")->Get().status.ok());
}

// A step whose master died never ends: nothing of it may be kept, also if its sender goes on.
TEST_F(AbortsTest, WhatComesAfterAnAbortIsNotKept) {
  Task a("a"), b("b");
  Link(a, b);
  b.endpoint().AbortStep(1, "its master died");
  const uint64_t late = GlobalCounters().late_tensors.load();
  ASSERT_TRUE(Send(a, b, Tensor(1, "sent", Bytes(10, 1), {})).ok());
  EXPECT_TRUE(Eventually([&] { return GlobalCounters().late_tensors.load() == late + 1; }));
  EXPECT_EQ(b.endpoint().unclaimed_tensors(), 0U);
  EXPECT_EQ(Receive(b, a, 1, "sent")->Get().error, "its master died");
}

TEST_F(AbortsTest, WhatComesAfterARestartIsKept) {
  Task a("a"), b("b");
  Link(a, b);
  b.endpoint().AbortStep(1, "of its former generation");
  a.endpoint().RestartStep(1);
  ASSERT_TRUE(Send(a, b, Tensor(1, "sent", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  b.endpoint().RestartStep(1);
  EXPECT_TRUE(Receive(b, a, 1, "sent")->Get().status.ok());
}

TEST_F(AbortsTest, LetGoOfWhatHadCome) {
  Task a("a"), b("b");
  Link(a, b);
  ASSERT_TRUE(Send(a, b, Tensor(1, "sent", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  b.endpoint().AbortStep(1, "its master died");
  EXPECT_EQ(b.endpoint().unclaimed_tensors(), 0U);
}

TEST_F(AbortsTest, KeepWhatThePeerSentForItsNewGeneration) {
  Task a("a"), b("b");
  Link(a, b);
  a.endpoint().RestartStep(1);
  ASSERT_TRUE(Send(a, b, Tensor(1, "sent", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  b.endpoint().AbortStep(1, "of its former generation");
  b.endpoint().RestartStep(1);
  EXPECT_TRUE(Receive(b, a, 1, "sent")->Get().status.ok());
}

TEST_F(AbortsTest, OfAStepThatEndedHereAreNobodysBusiness) {
  Task a("a"), b("b");
  Link(a, b);
  a.endpoint().EndStep(1);
  a.endpoint().AbortStep(1, "its cleanup");
  auto waiting = Receive(b, a, 1, "k");
  ExpectDelivered(a, b, 2, "a round trip");
  EXPECT_EQ(waiting->deliveries(), 0);
}

TEST_F(AbortsTest, AStepThatHasEndedIsNotWaitedFor) {
  Task a("a"), b("b");
  b.endpoint().EndStep(1);
  EXPECT_EQ(Receive(b, a, 1, "k")->Get().status.code(), Code::kAborted);
}

TEST_F(AbortsTest, ReachWhoeverWatchesAPeer) {
  Task a("a"), b("b");
  Link(a, b);
  auto watching = std::make_shared<Catcher>();
  b.endpoint().Watch(b.PeerTo(a), 1, "watch", watching);
  a.endpoint().AbortStep(1, "it failed");
  ExpectAborted(watching, "it failed");
}

// Stops the task that it is delivered to: nothing is polled there until Continue().
class Stopper final : public PendingRecv {
 public:
  void OnDelivery(Delivery) override {
    stopped_.store(true);
    continued_.get_future().wait();
  }
  bool stopped() const { return stopped_.load(); }
  void OnUseGrpc(const std::string&) override {}
  void Continue() { continued_.set_value(); }

 private:
  std::atomic<bool> stopped_{false};
  std::promise<void> continued_;
};

TEST_F(AbortsTest, ReachATaskThatDidNotAnswerForAWhile) {
  Settings settings = TestSettings();
  settings.peer_timeout = kSecond;
  Task a("a", settings), b("b");
  Link(b, a);
  Link(a, b);
  auto stopper = std::make_shared<Stopper>();
  b.endpoint().Receive(b.PeerTo(a), 1, "stop", stopper, Task::CallTo(a));
  ASSERT_TRUE(Send(a, b, Tensor(1, "stop", Bytes(10, 1), {})).ok());
  // `a` sends it nothing from then on, and its step fails with that.
  EXPECT_EQ(Receive(a, b, 2, "k")->Get().status.code(), Code::kUnavailable);
  EXPECT_FALSE(Send(a, b, Tensor(2, "k", Bytes(10, 1), {})).ok());
  a.endpoint().AbortStep(2, "b does not answer");
  stopper->Continue();
  ExpectAborted(Receive(b, a, 2, "k"), "b does not answer");
}

// A task that is reached by two addresses has two links, and the abort comes on both. The order in
// which they were made is that in which they are polled.
TEST_F(AbortsTest, DoNotOvertakeWhatWasSentOnAnotherLink) {
  for (const bool first_to_b : {false, true}) {
    Task a("a"), b("b");
    if (first_to_b) Link(a, b);
    a.endpoint().GetPeer("b", "another address")->Connect(Task::CallTo(b));
    ASSERT_TRUE(Eventually([&] { return !b.endpoint().links().UpTo("a").empty(); }));
    if (!first_to_b) Link(a, b);
    ASSERT_TRUE(Eventually([&] { return b.endpoint().links().UpTo("a").size() == 2; }));
    auto stopper = std::make_shared<Stopper>();
    b.endpoint().Receive(b.PeerTo(a), 2, "stop", stopper, Task::CallTo(a));
    a.endpoint().AbortStep(2, "stop");
    ASSERT_TRUE(Eventually([&] { return stopper->stopped(); }));
    auto waiting = Receive(b, a, 1, "k");
    ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(10, 1), {})).ok());
    a.endpoint().AbortStep(1, "it failed");
    stopper->Continue();
    EXPECT_TRUE(waiting->Get().status.ok()) << first_to_b;
    ExpectAborted(Receive(b, a, 1, "not sent"), "it failed");
  }
}

TEST_F(AbortsTest, ARestartedStepIsAnotherOne) {
  Task a("a"), b("b");
  Link(a, b);
  a.endpoint().AbortStep(1, "the first generation");
  ExpectAborted(Receive(b, a, 1, "k"), "the first generation");
  // In this order: until it hears of the restart, `b` takes the step on `a` for aborted.
  a.endpoint().RestartStep(1);
  b.endpoint().RestartStep(1);
  ExpectDelivered(a, b, 1, "k");
  a.endpoint().AbortStep(1, "the second generation");
  ExpectAborted(Receive(b, a, 1, "k"), "the second generation");
}

// All of it is in the ring already, and not read yet.
TEST_F(AbortsTest, NothingOfTheFormerGenerationIsTakenAfterBothRestarted) {
  Task a("a"), b("b");
  Link(a, b);
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  auto stopper = std::make_shared<Stopper>();
  b.endpoint().Receive(b.PeerTo(a), 2, "stop", stopper, Task::CallTo(a));
  ASSERT_TRUE(Send(a, b, Tensor(2, "stop", Bytes(10, 1), {})).ok());
  ASSERT_TRUE(Eventually([&] { return stopper->stopped(); }));
  a.endpoint().AbortStep(1, "the former generation");
  a.endpoint().RestartStep(1);
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(10, 2), {})).ok());
  b.endpoint().RestartStep(1);
  auto waiting = Receive(b, a, 1, "k");
  stopper->Continue();
  const Delivery delivery = waiting->Get();
  ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
  EXPECT_TRUE(Payload::Matches(delivery.data, 10, 2));
}

TEST_F(AbortsTest, ARestartFailsWhoWaits) {
  Task a("a"), b("b");
  Link(a, b);
  auto waiting = Receive(b, a, 1, "k");
  b.endpoint().RestartStep(1);
  EXPECT_EQ(waiting->Get().status.code(), Code::kAborted);
}

// Over gRPC its call would fail, because the peer still has the aborted step.
TEST_F(AbortsTest, WhoRestartsBeforeThePeerDoesHearsOfItsAbortAgain) {
  Task a("a"), b("b");
  Link(a, b);
  a.endpoint().AbortStep(1, "the first generation");
  ExpectAborted(Receive(b, a, 1, "k"), "the first generation");
  b.endpoint().RestartStep(1);
  ExpectAborted(Receive(b, a, 1, "k"), "the first generation");
}

// --- The bookkeeping alone

class StepAbortsTest : public ::testing::Test {
 protected:
  void SetUp() override { aborts_.OnPeerUp(&peer_, 7); }
  bool Hear(int64_t step, uint32_t generation = 0, uint32_t peer_generation = 0) {
    return aborts_.OnPeerAbort(&peer_, 7, {step, generation, peer_generation, "error"});
  }

  const TaskPair peer_{"here", "there"};
  StepAborts aborts_;
};

TEST_F(StepAbortsTest, AnAbortThatCrossedWithARestartHereDoesNotCount) {
  EXPECT_EQ(aborts_.Restart(1), 1u);
  EXPECT_FALSE(Hear(1, 0, 0));
  EXPECT_FALSE(aborts_.ErrorOf(&peer_, 1).has_value());
  EXPECT_TRUE(Hear(1, 0, 1));
}

TEST_F(StepAbortsTest, AnAbortThatARestartOvertookDoesNotCount) {
  aborts_.OnPeerRestart(&peer_, 7, 1, 2);
  EXPECT_FALSE(Hear(1, 1));
  EXPECT_TRUE(Hear(1, 2));
  aborts_.OnPeerRestart(&peer_, 7, 1, 2);  // over another link
  EXPECT_TRUE(aborts_.ErrorOf(&peer_, 1).has_value());
}

TEST_F(StepAbortsTest, AnAbortNamesWhatIsKnownOfThePeersGeneration) {
  ASSERT_TRUE(aborts_.Abort(1, "error"));
  EXPECT_EQ(aborts_.For(&peer_, 1)->peer_generation, 0u);
  aborts_.OnPeerRestart(&peer_, 7, 1, 3);
  EXPECT_EQ(aborts_.For(&peer_, 1)->peer_generation, 3u);
  EXPECT_EQ(aborts_.AllFor(&peer_).size(), 1u);
}

TEST_F(StepAbortsTest, WhatAFormerLifeSaidDoesNotCount) {
  aborts_.OnPeerUp(&peer_, 8);
  EXPECT_FALSE(Hear(1));
  EXPECT_FALSE(aborts_.ErrorOf(&peer_, 1).has_value());
}

TEST_F(StepAbortsTest, RemembersTheLastOnesAndEveryRestart) {
  aborts_.OnPeerRestart(&peer_, 7, -1, 1);
  aborts_.Restart(-1);
  const auto many = static_cast<int64_t>(StepAborts::kRemembered) * 3;
  for (int64_t step = 0; step < many; ++step) {
    EXPECT_TRUE(Hear(step));
    EXPECT_TRUE(aborts_.Abort(step, "error"));
  }
  EXPECT_FALSE(aborts_.ErrorOf(&peer_, 0).has_value());
  EXPECT_TRUE(aborts_.ErrorOf(&peer_, many - 1).has_value());
  EXPECT_LE(aborts_.AllFor(&peer_).size(), StepAborts::kRemembered);
  EXPECT_EQ(aborts_.Restarted().size(), 1u);
  ASSERT_TRUE(aborts_.Abort(-1, "error"));
  EXPECT_EQ(aborts_.For(&peer_, -1)->peer_generation, 1u);
}

TEST_F(StepAbortsTest, AnEndedStepIsForgotten) {
  ASSERT_TRUE(Hear(1));
  ASSERT_TRUE(aborts_.Abort(1, "error"));
  aborts_.End(1);
  EXPECT_FALSE(aborts_.For(&peer_, 1).has_value());
  EXPECT_FALSE(aborts_.ErrorOf(&peer_, 1).has_value());
}

}  // namespace
}  // namespace rdma_transport
