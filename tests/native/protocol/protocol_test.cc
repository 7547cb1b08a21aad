#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
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

TEST_F(ProtocolTest, EverySizeArrivesWhicheverSideIsFirst) {
  Task a("a"), b("b");
  int step = 0;
  for (const size_t length : {1, 64, 4095, 4096, 4097, 65536, 3000000}) {
    for (const bool receiver_first : {false, true}) {
      for (const bool in_arena : {false, true}) {
        const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
        std::shared_ptr<Catcher> catcher;
        if (receiver_first)
          catcher = Receive(b, a, ++step, "key");
        else
          ++step;
        auto payload = Bytes(length, step, in_arena ? &a.arena() : nullptr);
        ASSERT_TRUE(Send(a, b, Tensor(step, "key", payload, dims)).ok());
        if (!receiver_first) catcher = Receive(b, a, step, "key");
        const Delivery delivery = catcher->Get();
        ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
        ASSERT_EQ(delivery.dims, dims);
        ASSERT_EQ(delivery.bytes, length);
        ASSERT_TRUE(Payload::Matches(delivery.data, length, step));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(delivery.data) % 64, 0u);
      }
    }
  }
}

TEST_F(ProtocolTest, AnArenaTensorIsReadInPlaceAndComesBackWhenDropped) {
  if (!testing::OnShm()) GTEST_SKIP() << "peers read, they map nothing";
  Task a("a"), b("b");
  const uint64_t copied = GlobalCounters().copied_bytes.load();
  auto payload = Bytes(1 << 20, 1, &a.arena());
  const std::weak_ptr<Payload> alive = payload;
  const std::vector<int64_t> dims = {1 << 20};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", payload, dims)).ok());
  char* source = payload->data();
  payload.reset();
  Delivery delivery = Receive(b, a, 1, "k")->Get();
  EXPECT_FALSE(delivery.exclusive);
  // The same page: what the owner writes is seen. (Nobody does that to an immutable tensor.)
  source[0] = 'z';
  EXPECT_EQ(delivery.data[0], 'z');
  EXPECT_EQ(GlobalCounters().copied_bytes.load(), copied);
  EXPECT_FALSE(alive.expired());
  delivery = Delivery();
  EXPECT_TRUE(Eventually([&] { return alive.expired(); }));
}

TEST_F(ProtocolTest, AMutableSourceIsCopiedOnceAtTheSend) {
  if (testing::OnLoopback()) GTEST_SKIP() << "the peer's processor copies as well";
  Task a("a"), b("b");
  auto payload = Bytes(100000, 1, &a.arena());
  const uint64_t copied = GlobalCounters().copied_bytes.load();
  const std::vector<int64_t> dims = {100000};
  Outgoing tensor = Tensor(1, "k", payload, dims);
  tensor.mutable_source = true;
  ASSERT_TRUE(Send(a, b, std::move(tensor)).ok());
  std::fill(payload->data(), payload->data() + 100000, 'x');
  const Delivery delivery = Receive(b, a, 1, "k")->Get();
  EXPECT_TRUE(Payload::Matches(delivery.data, 100000, 1));
  EXPECT_EQ(GlobalCounters().copied_bytes.load() - copied, 100000u);
}

TEST_F(ProtocolTest, ATensorSentHomeIsNotCopied) {
  if (testing::OnLoopback()) GTEST_SKIP() << "the peer's processor copies";
  Task a("a"), b("b");
  const std::vector<int64_t> dims = {50000};
  ASSERT_TRUE(Send(a, b, Tensor(1, "out", Bytes(50000, 3, &a.arena()), dims)).ok());
  auto received = std::make_shared<Delivery>(Receive(b, a, 1, "out")->Get());
  const uint64_t copied = GlobalCounters().copied_bytes.load();
  Outgoing back;
  back.step = 1;
  back.key = "back";
  back.dims = dims.data();
  back.rank = 1;
  back.data = received->data;
  back.bytes = received->bytes;
  back.owner = OwnerRef::Holding(received);
  received.reset();
  ASSERT_TRUE(Send(b, a, std::move(back)).ok());
  const Delivery home = Receive(a, b, 1, "back")->Get();
  ASSERT_TRUE(home.status.ok());
  EXPECT_TRUE(Payload::Matches(home.data, 50000, 3));
  EXPECT_EQ(GlobalCounters().copied_bytes.load(), copied);
}

TEST_F(ProtocolTest, WithoutZeroCopyTheReceiverReadsIntoItsOwnMemory) {
  Settings settings = TestSettings();
  settings.zero_copy = false;
  Task a("a"), b("b", settings);
  const std::vector<int64_t> dims = {70000};
  auto early = Receive(b, a, 1, "early");
  ASSERT_TRUE(Send(a, b, Tensor(1, "early", Bytes(70000, 1, &a.arena()), dims)).ok());
  ASSERT_TRUE(Send(a, b, Tensor(1, "late", Bytes(70000, 2, &a.arena()), dims)).ok());
  const Delivery first = early->Get();
  const Delivery second = Receive(b, a, 1, "late")->Get();
  EXPECT_TRUE(first.exclusive);
  EXPECT_TRUE(Payload::Matches(first.data, 70000, 1));
  EXPECT_TRUE(Payload::Matches(second.data, 70000, 2));
  EXPECT_TRUE(Eventually([&] { return a.arena().Stats().used_bytes == 0; }));
}

TEST_F(ProtocolTest, LeftoversOfAnEndedStepNeverSurface) {
  Task a("a"), b("b");
  const std::vector<int64_t> dims = {9000};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(9000, 1, &a.arena()), dims)).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  b.endpoint().EndStep(1);
  EXPECT_EQ(b.endpoint().unclaimed_tensors(), 0u);
  // And one that is late for it.
  const uint64_t late = GlobalCounters().late_tensors.load();
  ASSERT_TRUE(Send(a, b, Tensor(1, "k2", Bytes(9000, 1, &a.arena()), dims)).ok());
  EXPECT_TRUE(Eventually([&] { return GlobalCounters().late_tensors.load() == late + 1; }));
  EXPECT_EQ(b.endpoint().unclaimed_tensors(), 0u);
  EXPECT_TRUE(Eventually([&] { return a.arena().Stats().used_bytes == 0; }));
}

TEST_F(ProtocolTest, WhatTheFabricCannotCarryIsAnnouncedAndFetchedByGrpc) {
  Task a("a"), b("b");
  Outgoing strings;
  strings.step = 1;
  strings.key = "s";
  strings.not_carried = "a string tensor";
  ASSERT_TRUE(Send(a, b, std::move(strings)).ok());
  auto catcher = Receive(b, a, 1, "s");
  EXPECT_TRUE(Eventually([&] { return catcher->grpc_asks() == 1; }));
  EXPECT_EQ(grpc_sends_.load(), 1);
  EXPECT_EQ(catcher->deliveries(), 0);
  EXPECT_TRUE(catcher->Claim());
}

// The receiver has fetched its tensor before the notice came, and the next one of the same key
// comes over the fabric, as in loops of collectives while a link comes up.
TEST_F(ProtocolTest, AnOldNoticeDoesNotKeepATensorFromItsReceive) {
  Task a("a"), b("b");
  const std::vector<int64_t> dims = {100};
  for (const bool first : {true, false}) {
    const int64_t step = first ? 1 : 2;
    Outgoing strings;
    strings.step = step;
    strings.key = "k";
    strings.not_carried = "a string tensor";
    ASSERT_TRUE(Send(a, b, std::move(strings)).ok());
    ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
    std::shared_ptr<Catcher> catcher;
    if (first) catcher = Receive(b, a, step, "k");
    ASSERT_TRUE(Send(a, b, Tensor(step, "k", Bytes(100, 1), dims)).ok());
    if (!first) {
      ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 2; }));
      catcher = Receive(b, a, step, "k");
    }
    const Delivery delivery = catcher->Get();
    ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
    EXPECT_TRUE(Payload::Matches(delivery.data, 100, 1));
    EXPECT_EQ(catcher->grpc_asks(), first ? 1 : 0);
  }
}

// It waits for the tensor already, so gRPC delivers it within the sender's call.
TEST_F(ProtocolTest, WhatGrpcHasDeliveredIsNotAnnouncedOnALinkThatComesUpLater) {
  Task a("a"), b("b");
  struct Fetched final : FallbackSend {
    explicit Fetched(Task* sender) : task(sender) {}
    Status Send() override {
      task->endpoint().Fetched(1, "k");
      return OkStatus();
    }
    std::unique_ptr<FallbackSend> Keep(bool) override { return std::make_unique<Fetched>(task); }
    void Fail(const Status&) override {}
    Task* task;
  } fetched(&a);
  const auto fails = Task::CallThatFails(Status(Code::kInvalidArgument, "no plugin"));
  const std::vector<int64_t> dims = {100};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(100, 1), dims), fails, &fetched).ok());
  }
  // b connects, so a's decision is out of date.
  auto waits = std::make_shared<Catcher>();
  b.endpoint().Receive(b.PeerTo(a), 1, "other", waits, Task::CallTo(a));
  ASSERT_TRUE(Eventually([&] {
    std::atomic<int> unused{0};
    CountingGrpc grpc(&unused);
    EXPECT_TRUE(
        a.PeerTo(b)->Send(Tensor(1, "other", Bytes(100, 1), dims), Task::CallTo(b), &grpc).ok());
    return waits->deliveries() == 1;
  }));
  auto next = Receive(b, a, 1, "k");
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(100, 2), dims)).ok());
  EXPECT_TRUE(next->Get().status.ok());
  EXPECT_EQ(next->grpc_asks(), 0);
}

TEST_F(ProtocolTest, ForbiddenFallbackIsAnErrorThatNamesTheSetting) {
  Settings settings = TestSettings();
  settings.allow_fallback = false;
  Task a("a", settings), b("b", settings);
  const std::vector<int64_t> dims = {1};
  ASSERT_TRUE(Send(a, b, Tensor(1, "connect", Bytes(1, 1), dims)).ok());
  ASSERT_TRUE(Receive(b, a, 1, "connect")->Get().status.ok());
  Outgoing strings;
  strings.step = 1;
  strings.key = "s";
  strings.not_carried = "a string tensor";
  const Status status = Send(a, b, std::move(strings));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("RDMA_TRANSPORT_FALLBACK=forbid"), std::string::npos);
  EXPECT_EQ(grpc_sends_.load(), 0);
}

TEST_F(ProtocolTest, APeerIsTriedAgainAfterAnInternalErrorOfGrpc) {
  Task a("a"), b("b");
  const std::vector<int64_t> dims = {100};
  const auto reset = Task::CallThatFails(Status(Code::kInternal, "Received RST_STREAM"));
  CountingGrpc fallback(&grpc_sends_);
  ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(100, 1), dims), reset, &fallback).ok());
  EXPECT_EQ(grpc_sends_.load(), 1);
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Send(a, b, Tensor(1, "k", Bytes(100, 1), dims)).ok());
    return a.linked();
  }));
}

// gRPC's channel to a task that was not up at the first attempt fails calls for a while.
TEST_F(ProtocolTest, WhereGrpcIsForbiddenATensorWaitsForAPeerThatIsNotUpYet) {
  Settings settings = TestSettings();
  settings.allow_fallback = false;
  Task a("a", settings), b("b", settings);
  std::atomic<int> calls{0};
  const BootstrapCall soon = [&](const std::string& request, Nanos timeout, const auto& done) {
    const Status refused(Code::kUnavailable, "Connection refused");
    return (++calls <= 3 ? Task::CallThatFails(refused) : Task::CallTo(b))(request, timeout, done);
  };
  CountingGrpc fallback(&grpc_sends_);
  const std::vector<int64_t> dims = {100};
  for (const char* key : {"k1", "k2"}) {
    ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, key, Bytes(100, 1), dims), soon, &fallback).ok());
  }
  // What is to be received fails at once, as it does over gRPC.
  auto catcher = std::make_shared<Catcher>();
  a.endpoint().Receive(a.PeerTo(b), 1, "r", catcher,
                       Task::CallThatFails(Status(Code::kUnavailable, "Connection refused")));
  EXPECT_EQ(catcher->Get().status.code(), Code::kUnavailable);
  for (const char* key : {"k1", "k2"}) EXPECT_TRUE(Receive(b, a, 1, key)->Get().status.ok());
  EXPECT_EQ(calls.load(), 4);
}

// A receive has failed, and the peer is not tried again at once.
TEST_F(ProtocolTest, WhereGrpcIsForbiddenATensorThatIsSentBetweenTwoAttemptsWaitsToo) {
  Settings settings = TestSettings();
  settings.allow_fallback = false;
  Task a("a", settings), b("b", settings);
  auto catcher = std::make_shared<Catcher>();
  a.endpoint().Receive(a.PeerTo(b), 1, "r", catcher,
                       Task::CallThatFails(Status(Code::kUnavailable, "Connection refused")));
  EXPECT_EQ(catcher->Get().status.code(), Code::kUnavailable);
  const std::vector<int64_t> dims = {100};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(100, 1), dims)).ok());
  EXPECT_TRUE(Receive(b, a, 1, "k")->Get().status.ok());
}

// Keeps how the send of a tensor that was parked failed.
class FailedSend final : public FallbackSend {
 public:
  explicit FailedSend(std::promise<Status>* failed) : failed_(failed) {}
  Status Send() override { return OkStatus(); }
  std::unique_ptr<FallbackSend> Keep(bool) override {
    return std::make_unique<FailedSend>(failed_);
  }
  void Fail(const Status& status) override { failed_->set_value(status); }

 private:
  std::promise<Status>* const failed_;
};

TEST_F(ProtocolTest, WhereGrpcIsForbiddenATensorForAPeerThatStaysAwayFails) {
  Settings settings = TestSettings();
  settings.allow_fallback = false;
  settings.connect_timeout = 500 * kMillisecond;
  std::promise<Status> failed;
  Task a("a", settings), b("b", settings);
  const BootstrapCall never = Task::CallThatFails(Status(Code::kUnavailable, "Connection refused"));
  FailedSend send(&failed);
  const std::vector<int64_t> dims = {100};
  ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(100, 1), dims), never, &send).ok());
  auto future = failed.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const Status status = future.get();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("Connection refused"), std::string::npos);
  EXPECT_NE(status.message().find("RDMA_TRANSPORT_FALLBACK=forbid"), std::string::npos);
}

TEST_F(ProtocolTest, APeerWithoutThePluginIsServedByGrpc) {
  Task a("a"), b("b");
  const BootstrapCall stock = Task::CallThatFails(Status(Code::kInvalidArgument, "Invalid key"));
  CountingGrpc fallback(&grpc_sends_);
  const std::vector<int64_t> dims = {10};
  ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(10, 1), dims), stock, &fallback).ok());
  EXPECT_EQ(grpc_sends_.load(), 1);
  auto catcher = std::make_shared<Catcher>();
  a.endpoint().Receive(a.PeerTo(b), 1, "r", catcher, stock);
  EXPECT_EQ(catcher->grpc_asks(), 1);
  EXPECT_NE(catcher->reason().find("does not run the rdma_transport plugin"), std::string::npos);
  // It restarts with the plugin and sends: what was handed to gRPC is announced on the new link.
  ASSERT_TRUE(Send(b, a, Tensor(2, "k", Bytes(10, 1), dims)).ok());
  EXPECT_TRUE(Receive(a, b, 2, "k")->Get().status.ok());
  auto announced = Receive(b, a, 1, "k");
  EXPECT_TRUE(Eventually([&] { return announced->grpc_asks() == 1; }));
  EXPECT_TRUE(announced->Claim());
  EXPECT_TRUE(catcher->Claim());
}

// The previous version is that of a task that is not upgraded yet.
TEST_F(ProtocolTest, TheNextAndThePreviousVersionAreServedByGrpcWithTheReason) {
  for (const uint32_t version : {kProtocolVersion - 1, kProtocolVersion + 1}) {
    Task a("a"), b("b");
    const BootstrapCall other_version = [&](const std::string& bytes, Nanos, const auto& done) {
      BootstrapRequest request;
      EXPECT_TRUE(BootstrapRequest::Decode(bytes, &request).ok());
      request.version = version;
      done(OkStatus(), b.endpoint().HandleBootstrap(request.Encode()));
    };
    auto catcher = std::make_shared<Catcher>();
    a.endpoint().Receive(a.PeerTo(b), 1, "r", catcher, other_version);
    EXPECT_EQ(catcher->grpc_asks(), 1);
    EXPECT_NE(catcher->reason().find("it uses protocol version"), std::string::npos);
    EXPECT_TRUE(catcher->Claim());
    grpc_sends_ = 0;
    CountingGrpc fallback(&grpc_sends_);
    const std::vector<int64_t> dims = {16};
    EXPECT_TRUE(
        a.PeerTo(b)->Send(Tensor(1, "s", Bytes(16, 1), dims), other_version, &fallback).ok());
    EXPECT_EQ(grpc_sends_.load(), 1);
  }
}

// Asks `asked` for links in the name of a task, and never connects to them. It keeps its ends: a
// card that finds none ends the other side's links.
class Asker {
 public:
  BootstrapReply AskFor(Task& asked, const std::string& task) {
    links_.push_back(task_.endpoint().links().Make(task, Now() + kSecond));
    EXPECT_TRUE(links_.back()->Open().ok());
    BootstrapRequest request;
    request.version = kProtocolVersion;
    request.from = {task, 77};
    request.channel = links_.back()->channel()->Address();
    BootstrapReply reply;
    EXPECT_TRUE(
        BootstrapReply::Decode(asked.endpoint().HandleBootstrap(request.Encode()), &reply).ok());
    return reply;
  }

 private:
  Task task_{"b"};
  std::vector<std::shared_ptr<Link>> links_;
};

TEST_F(ProtocolTest, OneCallerCannotMakeATaskHoldEverMoreLinks) {
  Settings settings = TestSettings();
  // None is given up meanwhile, not even by a card whose peer does not answer.
  settings.connect_timeout = 1000 * kSecond;
  settings.verbs.retry_timeout = 30 * kSecond;
  Task a("a", settings);
  Asker b;
  const auto refusals = [] { return GlobalCounters().errors.Get()["connection_refused"]; };
  const uint64_t before = refusals();
  for (int i = 0; i < 16; ++i) EXPECT_EQ(b.AskFor(a, "greedy").refusal, "") << i;
  const BootstrapReply refused = b.AskFor(a, "greedy");
  EXPECT_TRUE(refused.channel.empty());
  EXPECT_TRUE(refused.again);
  EXPECT_NE(refused.refusal.find("16 connections of greedy; try again later"), std::string::npos)
      << refused.refusal;
  EXPECT_EQ(refusals(), before + 1);
  EXPECT_EQ(b.AskFor(a, "another").refusal, "");
}

TEST_F(ProtocolTest, APeerThatCannotBeReachedIsAnErrorThatNamesIt) {
  Task a("a"), b("/job:gone/replica:0/task:0");
  auto catcher = std::make_shared<Catcher>();
  a.endpoint().Receive(a.PeerTo(b), 1, "r", catcher,
                       Task::CallThatFails(Status(Code::kUnavailable, "connection refused")));
  const Delivery delivery = catcher->Get();
  EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
  EXPECT_NE(delivery.status.message().find("/job:gone"), std::string::npos);
}

TEST_F(ProtocolTest, WaitersOfALostPeerFailOnceAndItsLoansComeBack) {
  Task a("a");
  auto b = std::make_unique<Task>("b");
  const std::vector<int64_t> dims = {9000};
  ASSERT_TRUE(Send(a, *b, Tensor(1, "k", Bytes(9000, 1, &a.arena()), dims)).ok());
  Delivery held = Receive(*b, a, 1, "k")->Get();
  std::vector<std::shared_ptr<Catcher>> waiting;
  for (int i = 0; i < 200; ++i) waiting.push_back(Receive(a, *b, 1, "w" + std::to_string(i)));
  ASSERT_TRUE(Eventually([&] {
    for (const PeerStats& peer : a.endpoint().Stats()) {
      if (peer.transport == testing::FabricSettings().fabric) return true;
    }
    return false;
  }));
  held = Delivery();
  b.reset();
  for (const auto& catcher : waiting) {
    EXPECT_EQ(catcher->Get().status.code(), Code::kUnavailable);
    EXPECT_EQ(catcher->deliveries(), 1);
  }
  EXPECT_TRUE(Eventually([&] { return a.arena().Stats().used_bytes == 0; }));
}

TEST_F(ProtocolTest, AReceiveThatFailedLeavesItsTensorToTheNextOne) {
  Task a("a"), b("b");
  auto failed = Receive(b, a, 1, "k");
  ASSERT_TRUE(failed->Claim());  // as when its link ends
  auto next = Receive(b, a, 1, "k");
  const std::vector<int64_t> dims = {9000};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(9000, 1, &a.arena()), dims)).ok());
  EXPECT_TRUE(next->Get().status.ok());
  EXPECT_EQ(failed->deliveries(), 0);
}

TEST_F(ProtocolTest, ASilentPeerFailsItsWaitersWithinTheTimeout) {
  Settings settings = TestSettings();
  settings.peer_timeout = 300 * kMillisecond;
  Task a("a", settings), b("b");
  const std::vector<int64_t> dims = {1};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k", Bytes(1, 1), dims)).ok());
  ASSERT_TRUE(Receive(b, a, 1, "k")->Get().status.ok());
  auto catcher = Receive(a, b, 1, "never");
  b.Stop();
  const Delivery delivery = catcher->Get();
  EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
  EXPECT_NE(delivery.status.message().find("has not answered"), std::string::npos);
}

TEST_F(ProtocolTest, ManyThreadsAndStepsBothWays) {
  Task a("a"), b("b");
  constexpr int kThreads = 4;
  constexpr int kSteps = 150;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Task& from = t % 2 == 0 ? a : b;
      Task& to = t % 2 == 0 ? b : a;
      for (int i = 0; i < kSteps; ++i) {
        const int64_t step = t * 1000 + i;
        const size_t length = 1 + (i * 7919) % 20000;
        const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
        std::shared_ptr<Catcher> catcher;
        if (i % 3 == 0) catcher = Receive(to, from, step, "k");
        EXPECT_TRUE(
            Send(from, to,
                 Tensor(step, "k", Bytes(length, i, i % 2 == 0 ? &from.arena() : nullptr), dims))
                .ok());
        if (catcher == nullptr) catcher = Receive(to, from, step, "k");
        const Delivery delivery = catcher->Get();
        ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
        EXPECT_TRUE(Payload::Matches(delivery.data, length, i));
        to.endpoint().EndStep(step);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(Eventually(
      [&] { return a.arena().Stats().used_bytes == 0 && b.arena().Stats().used_bytes == 0; }));
}

}  // namespace
}  // namespace rdma_transport
