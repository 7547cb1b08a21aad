// Two tasks share one link: what they agree on, in all orders of their messages, and what happens
// when one of them cannot, or lies.
#include "protocol/pairing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::CountingGrpc;
using testing::Eventually;
using testing::Payload;
using testing::ProtocolTest;
using testing::Task;
using testing::Tensor;
using testing::TestSettings;

// A bootstrap whose messages arrive when the test says so. Must outlive the tasks that call it,
// and each call must end before them.
class HeldCall {
 public:
  BootstrapCall Call() {
    return [this](std::string request, Nanos, std::function<void(Status, std::string)> done) {
      if (calls_++ > 0) return then_(std::move(request), 0, std::move(done));
      request_ = std::move(request);
      done_ = std::move(done);
    };
  }
  // What later calls do.
  void Then(BootstrapCall call) { then_ = std::move(call); }
  int calls() const { return calls_; }
  BootstrapRequest request() const {
    BootstrapRequest request;
    EXPECT_TRUE(BootstrapRequest::Decode(request_, &request).ok());
    return request;
  }
  BootstrapReply reply() const {
    BootstrapReply reply;
    EXPECT_TRUE(BootstrapReply::Decode(reply_, &reply).ok());
    return reply;
  }
  void ArriveAt(Task& task) { reply_ = task.endpoint().HandleBootstrap(request_); }
  void Reply() { std::exchange(done_, nullptr)(OkStatus(), reply_); }
  void Fail(const Status& status) { std::exchange(done_, nullptr)(status, ""); }

 private:
  std::atomic<int> calls_{0};
  std::string request_;
  std::string reply_;
  std::function<void(Status, std::string)> done_;
  BootstrapCall then_ = Task::CallThatFails(Status(Code::kUnavailable, "Connection refused"));
};

class PairingTest : public ProtocolTest {
 protected:
  static constexpr size_t kBytes = 40000;

  // Without waits that end by themselves.
  static Settings Patient() {
    Settings settings = TestSettings();
    settings.connect_timeout = 1000 * kSecond;
    return settings;
  }
  static Settings Hurried() {
    Settings settings = TestSettings();
    settings.connect_timeout = 20 * kSecond;
    return settings;
  }
  Status SendBy(Task& from, Task& to, int64_t step, const BootstrapCall& call) {
    const std::vector<int64_t> dims = {static_cast<int64_t>(kBytes)};
    CountingGrpc fallback(&grpc_sends_);
    return from.PeerTo(to)->Send(Tensor(step, "k", Bytes(kBytes, 1, &from.arena()), dims), call,
                                 &fallback);
  }
  Status SendTo(Task& from, Task& to, int64_t step) {
    return SendBy(from, to, step, Task::CallTo(to));
  }
  void ExpectReceived(Task& at, Task& from, int64_t step) {
    ExpectReceived(at, from, Receive(at, from, step, "k")->Get());
  }
  void ExpectReceived(Task& at, Task& from, const Delivery& delivery) {
    ASSERT_TRUE(delivery.status.ok()) << delivery.status.message() << "; " << Routes(at)
                                      << Routes(from) << grpc_sends_.load() << " by gRPC";
    EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, 1));
  }
  // Where tensors go now, for messages.
  static std::string Routes(Task& task) {
    std::string routes;
    for (const PeerStats& peer : task.endpoint().Stats()) {
      routes += "to " + peer.task + " by " + peer.transport + " (" + peer.reason + "); ";
    }
    return routes;
  }
  void ExpectExchange(Task& a, Task& b, int64_t step) {
    ASSERT_TRUE(SendTo(a, b, step).ok());
    ExpectReceived(b, a, step);
    ASSERT_TRUE(SendTo(b, a, step).ok());
    ExpectReceived(a, b, step);
    for (Task* task : {&a, &b}) task->endpoint().EndStep(step);
  }
  // How many links they have, up or not; both have the same number.
  static size_t LinksOf(Task& a, Task& b) {
    EXPECT_TRUE(Eventually(
        [&] { return a.endpoint().links().All().size() == b.endpoint().links().All().size(); }));
    return a.endpoint().links().All().size();
  }
};

TEST_F(PairingTest, TwoTasksThatSendToEachOtherHaveOneLink) {
  for (const char* other : {"a", "c"}) {
    Task b("b"), c(other);
    for (int64_t step = 1; step <= 20; ++step) ExpectExchange(b, c, step);
    EXPECT_EQ(LinksOf(b, c), 1u);
    for (Task* task : {&b, &c}) {
      const PeerStats peer = task->endpoint().Stats().front();
      EXPECT_TRUE(peer.linked);
      EXPECT_EQ(peer.links, 1u);
      std::vector<EdgeReport> edges;
      task->endpoint().ReportEdges(&edges);
      ASSERT_EQ(edges.size(), 1u) << "of the direction that it sends in";
      EXPECT_TRUE(edges.front().is_static);
    }
    EXPECT_EQ(grpc_sends_.load(), 0);
  }
}

TEST_F(PairingTest, ATaskThatWaitsForATensorNeedsNoLinkOfItsOwn) {
  Task a("a"), b("b");
  const auto waiting = Receive(b, a, 1, "k");
  ASSERT_TRUE(SendTo(a, b, 1).ok());
  EXPECT_TRUE(waiting->Get().status.ok());
  EXPECT_EQ(LinksOf(a, b), 1u);
}

TEST_F(PairingTest, ALinkThatIsNotUpYetIsWaitedFor) {
  for (const char* other : {"a", "c"}) {
    HeldCall held;
    Task b("b", Patient()), c(other, Patient());
    ASSERT_TRUE(SendBy(b, c, 1, held.Call()).ok());
    held.ArriveAt(c);
    ASSERT_TRUE(SendTo(c, b, 1).ok());
    const auto waiting = Receive(b, c, 1, "k");
    held.Reply();
    EXPECT_TRUE(waiting->Get().status.ok());
    ExpectReceived(c, b, 1);
    EXPECT_EQ(LinksOf(b, c), 1u);
    EXPECT_EQ(grpc_sends_.load(), 0);
  }
}

// Both requests are sent before either arrives.
TEST_F(PairingTest, RequestsThatCrossMakeOneLinkInEachOrderOfTheirMessages) {
  std::vector<std::array<int, 4>> orders;
  std::array<int, 4> events = {0, 1, 2, 3};  // a's request, a's reply, b's request, b's reply
  do {
    const auto at = [&](int event) { return std::find(events.begin(), events.end(), event); };
    if (at(0) < at(1) && at(2) < at(3)) orders.push_back(events);
  } while (std::next_permutation(events.begin(), events.end()));
  ASSERT_EQ(orders.size(), 6u);
  for (const auto& order : orders) {
    HeldCall of_a, of_b;
    Task a("a", Patient()), b("b", Patient());
    ASSERT_TRUE(SendBy(a, b, 1, of_a.Call()).ok());
    ASSERT_TRUE(SendBy(b, a, 1, of_b.Call()).ok());
    for (const int event : order) {
      if (event == 0) of_a.ArriveAt(b);
      if (event == 1) of_a.Reply();
      if (event == 2) of_b.ArriveAt(a);
      if (event == 3) of_b.Reply();
    }
    ExpectReceived(a, b, 1);
    ExpectReceived(b, a, 1);
    EXPECT_FALSE(of_a.reply().channel.empty());
    EXPECT_EQ(of_b.reply().use, of_a.request().link);
    EXPECT_EQ(of_b.calls(), 1);
    EXPECT_EQ(LinksOf(a, b), 1u);
    EXPECT_EQ(grpc_sends_.load(), 0);
  }
}

// The other one's request is on its way only after the link is up here.
TEST_F(PairingTest, ARequestThatIsLateMakesNoSecondLink) {
  HeldCall late;
  Task a("a", Patient()), b("b", Patient());
  ASSERT_TRUE(SendBy(b, a, 1, late.Call()).ok());
  ASSERT_TRUE(SendTo(a, b, 1).ok());
  ASSERT_TRUE(Eventually([&] { return a.endpoint().Stats().front().linked; }));
  late.ArriveAt(a);
  EXPECT_TRUE(late.reply().use_up);
  late.Reply();
  ExpectReceived(a, b, 1);
  ExpectReceived(b, a, 1);
  EXPECT_EQ(LinksOf(a, b), 1u);
}

TEST_F(PairingTest, TwoAddressesOfATaskShareTheLinkThatItOpened) {
  Task a("a"), b("b");
  ASSERT_TRUE(SendTo(a, b, 1).ok());
  ExpectReceived(b, a, 1);
  const std::vector<int64_t> dims = {100};
  CountingGrpc fallback(&grpc_sends_);
  for (const char* address : {"one:1", "two:2"}) {
    Peer* const peer = b.endpoint().GetPeer("a", address);
    ASSERT_TRUE(
        peer->Send(Tensor(2, address, Bytes(100, 1), dims), Task::CallTo(a), &fallback).ok());
    EXPECT_TRUE(Receive(a, b, 2, address)->Get().status.ok());
  }
  EXPECT_EQ(LinksOf(a, b), 1u);
  EXPECT_EQ(grpc_sends_.load(), 0);
  // Both learn of its end.
  for (const auto& link : a.endpoint().links().All()) {
    link->channel()->Close(Status(Code::kAborted, "over"));
  }
  ASSERT_TRUE(Eventually([&] { return !a.linked() && !b.linked(); }));
  for (const char* address : {"one:1", "two:2"}) {
    Peer* const peer = b.endpoint().GetPeer("a", address);
    ASSERT_TRUE(
        peer->Send(Tensor(3, address, Bytes(100, 1), dims), Task::CallTo(a), &fallback).ok());
    EXPECT_TRUE(Receive(a, b, 3, address)->Get().status.ok());
  }
}

// --- What is not believed ---

TEST_F(PairingTest, ALinkOfSomebodyElseWhoClaimsTheNameIsNotUsed) {
  Task a("a"), b("b"), impostor("b");
  ASSERT_TRUE(SendTo(impostor, a, 1).ok());
  ASSERT_TRUE(Eventually([&] { return a.endpoint().links().UpTo("b").size() == 1; }));
  ASSERT_TRUE(SendTo(a, b, 2).ok());
  ExpectReceived(b, a, 2);
  EXPECT_EQ(impostor.endpoint().unclaimed_tensors(), 0u);
  EXPECT_EQ(b.endpoint().links().All().size(), 1u);
  EXPECT_EQ(a.endpoint().links().All().size(), 2u);
}

// With the ID of the true task's link, which it has read somewhere.
TEST_F(PairingTest, ASecondLinkWithTheIdOfAnotherOneIsNotUsed) {
  HeldCall held, forged;
  Task a("a"), b("b"), impostor("b");
  ASSERT_TRUE(SendBy(b, a, 1, held.Call()).ok());
  held.ArriveAt(a);
  const BootstrapCall with_its_id = [&](const std::string& bytes, Nanos, const auto& done) {
    BootstrapRequest request;
    EXPECT_TRUE(BootstrapRequest::Decode(bytes, &request).ok());
    request.link = held.request().link;
    done(OkStatus(), a.endpoint().HandleBootstrap(request.Encode()));
  };
  ASSERT_TRUE(SendBy(impostor, a, 1, with_its_id).ok());
  ASSERT_TRUE(Eventually([&] { return a.endpoint().links().UpTo("b").size() == 1; }));
  ASSERT_TRUE(SendTo(a, b, 2).ok());  // it waits for the other one
  held.Reply();
  ExpectReceived(b, a, 2);
  EXPECT_EQ(impostor.endpoint().unclaimed_tensors(), 0u);
}

TEST_F(PairingTest, AReplyThatNamesAnotherLinkThanTheOfferedOneIsARefusal) {
  Task a("a"), b("b");
  ASSERT_TRUE(SendTo(b, a, 1).ok());
  ASSERT_TRUE(Eventually([&] { return a.endpoint().links().UpTo("b").size() == 1; }));
  int offers = 0;
  const BootstrapCall forging = [&](const std::string& bytes, Nanos, const auto& done) {
    BootstrapRequest request;
    EXPECT_TRUE(BootstrapRequest::Decode(bytes, &request).ok());
    EXPECT_NE(request.offer.empty(), request.channel.empty());
    BootstrapReply reply;
    EXPECT_TRUE(BootstrapReply::Decode(b.endpoint().HandleBootstrap(bytes), &reply).ok());
    if (!request.offer.empty()) {
      EXPECT_EQ(reply.use, request.offer);
      ++offers;
      reply.use.back() ^= 1;
    }
    done(OkStatus(), reply.Encode());
  };
  ASSERT_TRUE(SendBy(a, b, 1, forging).ok());
  ExpectReceived(b, a, 1);
  EXPECT_EQ(offers, 1);
  EXPECT_EQ(LinksOf(a, b), 2u);
}

TEST_F(PairingTest, AnOfferIsConfirmedOnlyToTheTaskAndTheIncarnationThatTheLinkIsFor) {
  Task a("a"), b("b");
  ASSERT_TRUE(SendTo(a, b, 1).ok());
  ExpectReceived(b, a, 1);
  BootstrapRequest request;
  request.version = kProtocolVersion;
  request.offer = a.endpoint().links().All().front()->id();
  const auto use = [&](const Identity& from) {
    request.from = from;
    BootstrapReply reply;
    EXPECT_TRUE(
        BootstrapReply::Decode(a.endpoint().HandleBootstrap(request.Encode()), &reply).ok());
    EXPECT_EQ(reply.use.empty(), !reply.refusal.empty());
    return reply.use;
  };
  const uint64_t incarnation = b.endpoint().identity().incarnation;
  EXPECT_EQ(use({"b", incarnation}), request.offer);
  EXPECT_EQ(use({"b", incarnation + 1}), "");
  EXPECT_EQ(use({"c", incarnation}), "");
  request.offer.back() ^= 1;
  EXPECT_EQ(use({"b", incarnation}), "");
  request.offer = "short";
  EXPECT_EQ(use({"b", incarnation}), "");
}

// --- What goes wrong in between ---

TEST_F(PairingTest, ARequestThatNeverArrivesKeepsNobodyWaiting) {
  HeldCall lost, late;
  Task a("a", Hurried()), b("b", Hurried());
  late.Then(Task::CallTo(a));
  ASSERT_TRUE(SendBy(a, b, 1, lost.Call()).ok());
  ASSERT_TRUE(SendBy(b, a, 1, late.Call()).ok());
  late.ArriveAt(a);
  EXPECT_EQ(late.reply().use, lost.request().link);
  late.Reply();
  ExpectReceived(a, b, 1);
  EXPECT_EQ(late.calls(), 2);
  // The former attempt wins no tie any more.
  ASSERT_TRUE(Eventually([&] { return b.endpoint().links().UpTo("a").size() == 1; }));
  lost.Fail(Status(Code::kUnavailable, "it never arrived"));
  EXPECT_TRUE(Eventually([&] {
    const auto again = Receive(b, a, 2, "k");
    EXPECT_TRUE(SendTo(a, b, 2).ok());
    return a.endpoint().Stats().front().linked;
  }));
  EXPECT_EQ(LinksOf(a, b), 1u);
}

TEST_F(PairingTest, ALinkThatEndsWhileItIsWaitedForIsNotWaitedForAnyLonger) {
  HeldCall of_a, of_b;
  Task a("a", Patient()), b("b", Patient());
  of_b.Then(Task::CallTo(a));
  ASSERT_TRUE(SendBy(a, b, 1, of_a.Call()).ok());
  ASSERT_TRUE(SendBy(b, a, 1, of_b.Call()).ok());
  of_a.ArriveAt(b);
  of_b.ArriveAt(a);
  of_b.Reply();
  EXPECT_EQ(of_b.calls(), 1);
  for (const auto& link : b.endpoint().links().All()) {
    link->channel()->Close(Status(Code::kAborted, "broken"));
  }
  ExpectReceived(a, b, 1);
  EXPECT_EQ(of_b.calls(), 2);
  of_a.Reply();  // too late
}

TEST_F(PairingTest, ALinkThatHasEndedIsNotWaitedFor) {
  HeldCall late;
  Task a("a", Patient()), b("b", Patient());
  late.Then(Task::CallTo(a));
  ASSERT_TRUE(SendBy(b, a, 1, late.Call()).ok());
  ASSERT_TRUE(SendTo(a, b, 1).ok());
  ExpectReceived(b, a, 1);
  late.ArriveAt(a);
  EXPECT_FALSE(late.reply().use.empty());
  for (const auto& link : b.endpoint().links().All()) {
    link->channel()->Close(Status(Code::kAborted, "broken"));
  }
  // `b` sends on none, but its table has the link until the polling thread has closed it.
  ASSERT_TRUE(Eventually([&] { return !a.linked() && b.endpoint().links().All().empty(); }));
  late.Reply();
  ExpectReceived(a, b, 1);
  EXPECT_EQ(late.calls(), 2);
}

TEST_F(PairingTest, ATaskThatDiesBeforeItsLinkIsUpIsReported) {
  HeldCall lost, of_b;
  auto a = std::make_unique<Task>("a", Hurried());
  Task b("b", Hurried());
  ASSERT_TRUE(SendBy(*a, b, 1, lost.Call()).ok());
  const auto waiting = std::make_shared<Catcher>();
  b.endpoint().Receive(b.PeerTo(*a), 1, "k", waiting, of_b.Call());
  of_b.ArriveAt(*a);
  of_b.Reply();
  EXPECT_EQ(waiting->deliveries(), 0);
  lost.Fail(Status(Code::kUnavailable, "it is gone"));
  a.reset();
  EXPECT_EQ(waiting->Get().status.code(), Code::kUnavailable);
}

TEST_F(PairingTest, ARestartedTaskGetsALinkOfItsOwn) {
  for (const char* survivor : {"a", "c"}) {
    Settings settings = TestSettings();
    settings.peer_timeout = kSecond;  // a card does not say that a peer is gone
    settings.verbs.retry_timeout = 100 * kMillisecond;
    Task other(survivor, settings);
    auto b = std::make_unique<Task>("b", settings);
    ExpectExchange(other, *b, 1);
    for (int64_t step = 2; step < 4; ++step) {
      b = std::make_unique<Task>("b", settings);
      // At once, whether or not the other one knows. Until it does, its receives may end with the
      // link of the dead one.
      ASSERT_TRUE(SendTo(*b, other, step).ok());
      Delivery delivery;
      EXPECT_TRUE(Eventually([&] {
        delivery = Receive(other, *b, step, "k")->Get();
        return delivery.status.code() != Code::kUnavailable;
      }));
      ExpectReceived(other, *b, delivery);
      // Until the other one knows, it sends to the dead one.
      ASSERT_TRUE(Eventually([&] {
        const PeerStats peer = other.endpoint().Stats().front();
        return !peer.linked || peer.incarnation == b->endpoint().identity().incarnation;
      }));
      ExpectExchange(other, *b, 10 * step);
      EXPECT_EQ(LinksOf(other, *b), 1u);
    }
  }
}

TEST_F(PairingTest, AfterABreakBothUseOneLinkAgain) {
  Task a("a"), b("b");
  for (int64_t step = 1; step <= 10; ++step) {
    ExpectExchange(a, b, step);
    EXPECT_EQ(LinksOf(a, b), 1u);
    for (const auto& link : (step % 2 == 0 ? a : b).endpoint().links().All()) {
      link->channel()->Close(Status(Code::kAborted, "broken"));
    }
    ASSERT_TRUE(Eventually([&] { return !a.linked() && !b.linked(); }));
  }
}

TEST_F(PairingTest, ManyTasksThatStartAtOnceHaveOneLinkForEachPair) {
  constexpr int kTasks = 6;
  std::vector<std::unique_ptr<Task>> tasks;
  for (int i = 0; i < kTasks; ++i) tasks.push_back(std::make_unique<Task>(std::to_string(i)));
  std::vector<std::thread> threads;
  for (int i = 0; i < kTasks; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kTasks; ++j) {
        if (j == i) continue;
        EXPECT_TRUE(SendTo(*tasks[i], *tasks[j], 1).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kTasks; ++i) {
    for (int j = 0; j < kTasks; ++j) {
      if (j != i) ExpectReceived(*tasks[i], *tasks[j], 1);
    }
  }
  for (const auto& task : tasks) {
    EXPECT_TRUE(Eventually([&] { return task->endpoint().links().All().size() == kTasks - 1; }))
        << task->endpoint().links().All().size();
  }
}

}  // namespace
}  // namespace rdma_transport
