// What becomes of tensors when the verbs links under them break.

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "task.h"
#include "verbs_pair.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::Eventually;
using testing::ExpectHas;
using testing::Fake;
using testing::Payload;
using testing::SetFake;
using testing::Task;

// What became of one tensor beside the fabric.
struct Fate {
  std::atomic<int> sends{0};
  std::atomic<int> fails{0};
  std::atomic<int> kept{0};  // may still be needed
};

class GrpcOf final : public FallbackSend {
 public:
  explicit GrpcOf(std::shared_ptr<Fate> fate, bool kept = false)
      : fate_(std::move(fate)), kept_(kept) {
    if (kept_) fate_->kept.fetch_add(1);
  }
  ~GrpcOf() override {
    if (kept_) fate_->kept.fetch_sub(1);
  }
  Status Send() override {
    fate_->sends.fetch_add(1);
    return OkStatus();
  }
  std::unique_ptr<FallbackSend> Keep(bool) override {
    return std::make_unique<GrpcOf>(fate_, true);
  }
  void Fail(const Status&) override { fate_->fails.fetch_add(1); }

 private:
  const std::shared_ptr<Fate> fate_;
  const bool kept_;
};

class VerbsLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Fake().reset();
    SetFake("retry_ms", "60");
  }
  // The tasks are gone by now.
  void TearDown() override {
    const FakeIbverbsStats left = testing::FakeStats();
    EXPECT_EQ(left.qps + left.cqs + left.mrs + left.pds + left.contexts, 0u);
    Fake().reset();
  }

  static Settings MakeSettings() {
    Settings settings = testing::OnFake();
    settings.arena_size = uint64_t{256} << 20;
    settings.peer_timeout = 2 * kSecond;
    settings.connect_timeout = 2 * kSecond;
    return settings;
  }

  std::shared_ptr<Fate> Send(Task& from, Task& to, int64_t step, size_t length,
                             Status* status = nullptr) {
    auto fate = std::make_shared<Fate>();
    GrpcOf fallback(fate);
    auto payload = std::make_shared<Payload>(length, static_cast<int>(step), &from.arena());
    const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
    const Status sent = from.PeerTo(to)->Send(testing::Tensor(step, kKey, payload, dims),
                                              Task::CallTo(to), &fallback);
    if (status != nullptr) {
      *status = sent;
    } else {
      EXPECT_TRUE(sent.ok()) << sent.message();
    }
    return fate;
  }
  static std::shared_ptr<Catcher> Receive(Task& at, Task& from, int64_t step) {
    auto catcher = std::make_shared<Catcher>();
    at.endpoint().Receive(at.PeerTo(from), step, kKey, catcher, Task::CallTo(from));
    return catcher;
  }
  // True: by the fabric, and as it was sent. What is not ends its step.
  bool Pass(Task& from, Task& to, size_t length) {
    const int64_t step = ++step_;
    const auto catcher = Receive(to, from, step);
    Status sent;
    const auto fate = Send(from, to, step, length, &sent);
    Eventually([&] { return catcher->deliveries() + catcher->grpc_asks() > 0 || !sent.ok(); });
    bool passed = false;
    if (catcher->Claim()) {
      to.endpoint().RemoveRecv(step, kKey, catcher.get());
    } else {
      const Delivery delivery = catcher->Get();
      passed = delivery.status.ok() && fate->sends == 0;
      if (delivery.status.ok()) {
        EXPECT_TRUE(Payload::Matches(delivery.data, length, static_cast<int>(step)));
      }
    }
    from.endpoint().EndStep(step);
    to.endpoint().EndStep(step);
    return passed;
  }
  static std::string PathTo(Task& from, const std::string& task) {
    for (const PeerStats& stats : from.endpoint().Stats()) {
      if (stats.task == task) return stats.transport;
    }
    return "";
  }
  void ExpectArenasEmpty(Task& a, Task& b) {
    for (Task* task : {&a, &b}) {
      EXPECT_TRUE(Eventually([&] { return task->arena().Stats().used_bytes == 0; }));
    }
  }

  static constexpr char kKey[] = "/job:a;1;/job:b;edge;0:0";
  std::atomic<int64_t> step_{0};
};

struct Kind {
  const char* name;
  size_t length;
  bool static_edges;
  bool allow_fallback;
};

class EachKind : public VerbsLinkTest, public ::testing::WithParamInterface<Kind> {};

TEST_P(EachKind, WaitersFailAndWhatWasNotConfirmedGoesElsewhereOnce) {
  const Kind kind = GetParam();
  Settings settings = MakeSettings();
  settings.static_edges = kind.static_edges;
  settings.allow_fallback = kind.allow_fallback;
  Task a("/job:a", settings), b("/job:b", settings);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Pass(a, b, kind.length));
  // These have surely come.
  std::vector<std::shared_ptr<Fate>> confirmed;
  for (int64_t step = 901; step <= 905; ++step) {
    confirmed.push_back(Send(a, b, step, kind.length));
    ASSERT_TRUE(Receive(b, a, step)->Get().status.ok());
    ASSERT_TRUE(Eventually([&] { return confirmed.back()->kept == 0; }));
  }
  std::vector<std::shared_ptr<Catcher>> waiting;
  for (int64_t step = 1001; step <= 1010; ++step) waiting.push_back(Receive(b, a, step));
  Fake().break_path(true);
  const Nanos begin = Now();
  std::vector<std::shared_ptr<Fate>> lost;
  for (int64_t step = 1001; step <= 1010; ++step) lost.push_back(Send(a, b, step, kind.length));
  for (const auto& catcher : waiting) {
    const Delivery delivery = catcher->Get();
    EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
    ExpectHas(delivery.status, "peer /job:a is lost");
    // On a busy machine the sender sometimes connects anew before the receiver notices.
    testing::ExpectHasAny(delivery.status, {"IBV_WC_RETRY_EXC_ERR", "did not come up in time"});
    EXPECT_EQ(catcher->deliveries(), 1);
  }
  EXPECT_LT(Now() - begin, 4 * kSecond);
  for (const auto& fate : lost) {
    EXPECT_TRUE(Eventually([&] { return fate->sends + fate->fails == 1 && fate->kept == 0; }));
    EXPECT_EQ(fate->sends.load(), kind.allow_fallback ? 1 : 0);
  }
  // Meanwhile tensors go by gRPC, or their steps fail.
  if (kind.allow_fallback) {
    EXPECT_FALSE(Pass(a, b, kind.length));
    EXPECT_NE(PathTo(a, "/job:b"), "verbs");
  }
  Fake().break_path(false);
  EXPECT_TRUE(Eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return Pass(a, b, kind.length) && PathTo(a, "/job:b") == "verbs";
  }));
  EXPECT_TRUE(Eventually([&] { return Pass(b, a, kind.length); })) << "the other way, too";
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Pass(a, b, kind.length));
  for (const auto& fate : confirmed) EXPECT_EQ(fate->sends + fate->fails, 0);
  for (const auto& fate : lost) EXPECT_EQ(fate->sends + fate->fails, 1);
  ExpectArenasEmpty(a, b);
}

INSTANTIATE_TEST_SUITE_P(, EachKind,
                         ::testing::Values(Kind{"Inline", 100, true, true},
                                           Kind{"Dynamic", 50000, false, true},
                                           Kind{"Static", 50000, true, true},
                                           Kind{"StaticForbidden", 50000, true, false}),
                         [](const auto& info) { return info.param.name; });

// Nobody waits while links break, so nothing but the tensors themselves can be lost: each is either
// with its receiver, or was handed to gRPC once.
TEST_F(VerbsLinkTest, NoTensorIsEverLostOrSentTwice) {
  constexpr int kStatuses[] = {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR, IBV_WC_GENERAL_ERR};
  std::mt19937 random(11);
  SetFake("retry_ms", "20");
  Settings settings = MakeSettings();
  settings.static_edges = false;
  Task a("/job:a", settings), b("/job:b", settings);
  int fallback = 0;
  int by_fabric = 0;
  for (int round = 0; round < 25; ++round) {
    SCOPED_TRACE(round);
    // Both ways, so that links of both sides break.
    Eventually([&] { return Pass(a, b, 10) && Pass(b, a, 10); });
    const int64_t first = step_ + 1;
    step_ += 40;
    std::vector<std::shared_ptr<Fate>> fates;
    Fake().complete_with(kStatuses[random() % 3], 0, 1 + static_cast<int>(random() % 40));
    for (int64_t step = first; step < first + 40; ++step) {
      fates.push_back(Send(a, b, step, random() % 2 == 0 ? 3000 : 9000));
      if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (const auto& fate : fates) {
      ASSERT_TRUE(Eventually([&] { return fate->kept == 0; }));
      ASSERT_LE(fate->sends.load(), 1);
      ASSERT_EQ(fate->fails.load(), 0);
    }
    for (int64_t step = first; step < first + 40; ++step) {
      if (fates[static_cast<size_t>(step - first)]->sends == 1) {
        ++fallback;
      } else {
        // The bytes of a larger one may not have been read yet; then that is said.
        const Delivery delivery = Receive(b, a, step)->Get();
        ASSERT_NE(delivery.status.code(), Code::kDeadlineExceeded) << step - first << " is lost";
        if (!delivery.status.ok()) {
          EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
        }
        ++by_fabric;
      }
      a.endpoint().EndStep(step);
      b.endpoint().EndStep(step);
    }
    // What was not reached by these sends must not hit the next round.
    for (int i = 0; i < 60; ++i) Pass(a, b, 10);
  }
  EXPECT_GT(fallback, 0);
  EXPECT_GT(by_fabric, 0);
  ExpectArenasEmpty(a, b);
}

class EachKindOfTwoPorts : public EachKind {};

// The port of the notifications fails in the middle of steps, in turn the first and the second one.
TEST_P(EachKindOfTwoPorts, StepsEndWellAlthoughAPortFails) {
  SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
  const Kind kind = GetParam();
  Settings settings = MakeSettings();
  settings.static_edges = kind.static_edges;
  settings.allow_fallback = kind.allow_fallback;
  settings.verbs.devices = "=fake_0,fake_1";
  Task a("/job:a", settings);
  settings.verbs.devices = "=fake_2,fake_3";
  Task b("/job:b", settings);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Pass(a, b, kind.length) && Pass(b, a, kind.length));
  // The routes of all links: "fake_0:1 10.0.0.1 -> 10.0.0.3, fake_1:1".
  const auto all_of = [&](const std::function<bool(const std::string&)>& condition) {
    size_t links = 0;
    for (Task* task : {&a, &b}) {
      for (const PeerStats& peer : task->endpoint().Stats()) {
        if (!peer.linked) continue;
        ++links;
        if (!condition(peer.reason)) return false;
      }
    }
    return links >= 2;
  };
  const auto all_begin_with = [&](const std::string& one, const std::string& other) {
    return all_of([&](const std::string& route) {
      return route.rfind(one, 0) == 0 || route.rfind(other, 0) == 0;
    });
  };
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(round);
    ASSERT_TRUE(Eventually([&] {
      return all_of([](const std::string& route) { return route.find(", ") != std::string::npos; });
    }));
    const bool first_ports = round % 2 == 0;
    ASSERT_TRUE(first_ports ? all_begin_with("fake_0", "fake_2")
                            : all_begin_with("fake_1", "fake_3"));
    const auto moved = [&] {
      return first_ports ? all_begin_with("fake_1", "fake_3") : all_begin_with("fake_0", "fake_2");
    };
    const bool cut = round >= 2;
    const std::string key =
        std::string(first_ports ? "fake_0" : "fake_3") + (cut ? ".network" : ":1.port_state");
    const int64_t first = step_ + 1;
    // Until all links have left it, and a little longer.
    for (int more = 10; more > 0 && step_ < first + 5000; more -= moved() ? 1 : 0) {
      const int64_t step = ++step_;
      const bool forth = step % 2 == 0;
      Task& from = forth ? a : b;
      Task& to = forth ? b : a;
      const auto catcher = Receive(to, from, step);
      const auto fate = Send(from, to, step, kind.length);
      if (step == first + 10) SetFake(key.c_str(), cut ? "7" : "down");
      const Delivery delivery = catcher->Get();
      ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
      EXPECT_TRUE(Payload::Matches(delivery.data, kind.length, static_cast<int>(step)));
      EXPECT_EQ(catcher->deliveries(), 1);
      EXPECT_TRUE(Eventually([&] { return fate->kept == 0; }));
      EXPECT_EQ(fate->sends + fate->fails, 0);
      a.endpoint().EndStep(step);
      b.endpoint().EndStep(step);
    }
    EXPECT_TRUE(moved());
    SetFake(key.c_str(), cut ? "0" : "active");
  }
  ExpectArenasEmpty(a, b);
}

INSTANTIATE_TEST_SUITE_P(, EachKindOfTwoPorts,
                         ::testing::Values(Kind{"Inline", 100, true, true},
                                           Kind{"Large", 3000000, true, false}),
                         [](const auto& info) { return info.param.name; });

TEST_F(VerbsLinkTest, WhatWaitsForAForbiddenWayFailsItsStep) {
  Settings settings = MakeSettings();
  settings.allow_fallback = false;
  Task a("/job:a", settings), b("/job:b", settings);
  Fake().break_path(true);
  const auto fate = Send(a, b, 1, 100);  // waits for the first link, which never comes up
  EXPECT_TRUE(Eventually([&] { return fate->fails == 1; }));
  EXPECT_EQ(fate->sends.load(), 0);
  EXPECT_EQ(fate->kept.load(), 0);
}

// Nothing is sent to a host that has vanished, so nothing fails there.
TEST_F(VerbsLinkTest, APeerThatComesBackEndsTheLinkOfTheFormerIncarnation) {
  Settings settings = MakeSettings();
  settings.peer_timeout = 80 * kSecond;
  Task a("/job:a", settings), b("/job:b", settings);
  ASSERT_TRUE(Eventually([&] { return Pass(a, b, 100); }));
  Fake().break_path(true);
  BootstrapRequest request;
  request.version = kProtocolVersion;
  request.from = b.endpoint().identity();
  ++request.from.incarnation;
  request.link = std::string(Pairing::kIdBytes, 'l');
  a.endpoint().HandleBootstrap(request.Encode());
  EXPECT_TRUE(Eventually([&] { return a.endpoint().links().Up().empty(); }));
  Fake().break_path(false);
}

TEST_F(VerbsLinkTest, ALinkThatCannotBeOpenedIsTriedAgainLater) {
  Task a("/job:a", MakeSettings()), b("/job:b", MakeSettings());
  Fake().fail("create_qp", 1, ENOMEM);
  Pass(a, b, 100);
  Fake().fail("modify_qp", 5, ETIMEDOUT);  // behind three of the side that is asked
  EXPECT_TRUE(Eventually([&] { return Pass(a, b, 100); }));
  EXPECT_TRUE(Eventually([&] { return Pass(b, a, 100); }));
  ExpectArenasEmpty(a, b);
}

// Keeps its task from polling until it is let go.
class Blocker final : public PendingRecv {
 public:
  void OnDelivery(Delivery) override {
    std::unique_lock<std::mutex> lock(mu_);
    blocks_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return over_; });
  }
  void OnUseGrpc(const std::string&) override {}
  void AwaitBlock() {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(10), [this] { return blocks_; }));
  }
  void LetGo() {
    std::lock_guard<std::mutex> lock(mu_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool blocks_ = false;
  bool over_ = false;
};

TEST_F(VerbsLinkTest, ASilentPeerFailsWaitersAndSendsUntilItAnswersAgain) {
  Settings settings = MakeSettings();
  settings.peer_timeout = 300 * kMillisecond;
  Task a("/job:a", settings), b("/job:b", settings);
  ASSERT_TRUE(Pass(a, b, 100));
  ASSERT_TRUE(Pass(b, a, 100));
  auto blocker = std::make_shared<Blocker>();
  b.endpoint().Receive(b.PeerTo(a), 501, kKey, blocker, Task::CallTo(a));
  const auto confirmed = Send(a, b, 501, 100);
  blocker->AwaitBlock();
  const auto waiting = Receive(a, b, 502);
  const Delivery delivery = waiting->Get();
  EXPECT_EQ(delivery.status.code(), Code::kUnavailable);
  ExpectHas(delivery.status, "peer /job:b has not answered");
  Status refused;
  const auto fate = Send(a, b, 503, 100, &refused);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  ExpectHas(refused, "/job:b");
  EXPECT_EQ(fate->sends + fate->fails + fate->kept, 0) << "its step has been told";
  blocker->LetGo();
  EXPECT_TRUE(Eventually([&] { return Pass(a, b, 100); }));
  const auto later = Send(a, b, 504, 100);
  EXPECT_TRUE(Receive(b, a, 504)->Get().status.ok());
  EXPECT_TRUE(Eventually([&] { return later->kept + confirmed->kept == 0; }));
  EXPECT_EQ(PathTo(a, "/job:b"), "verbs");
}

// A task that only receives says nothing that could fail.
TEST_F(VerbsLinkTest, TheLinkOfATaskThatIsGoneGoesThoughNobodyUsesIt) {
  Settings settings = MakeSettings();
  settings.peer_timeout = 500 * kMillisecond;
  Task a("/job:a", settings);
  {
    Task b("/job:b", settings);
    ASSERT_TRUE(Pass(b, a, 100));
    const auto linked = [&] {
      const std::vector<PeerStats> all = a.endpoint().Stats();
      return std::any_of(all.begin(), all.end(), [](const auto& stats) { return stats.linked; });
    };
    ASSERT_TRUE(Eventually(linked));
    Fake().break_path(true);
    b.Stop();
    EXPECT_TRUE(Eventually([&] { return !linked(); }));
  }
  Fake().break_path(false);
}

TEST_F(VerbsLinkTest, WithoutMemoryToReceiveIntoTheErrorSaysSo) {
  Settings settings = MakeSettings();
  settings.static_edges = false;
  Task a("/job:a", settings);
  settings.arena_size = uint64_t{4} << 20;
  Task b("/job:b", settings);
  ASSERT_TRUE(Pass(a, b, 100000));
  Send(a, b, 501, 16 << 20);
  const Status status = Receive(b, a, 501)->Get().status;
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  ExpectHas(status, "RDMA_TRANSPORT_ARENA_SIZE");
  EXPECT_TRUE(Pass(a, b, 100000)) << "the link is as good as before";
  ExpectArenasEmpty(a, b);
}

TEST_F(VerbsLinkTest, WhatTheCardDoesNotTakeGoesByGrpc) {
  Settings settings = MakeSettings();
  settings.static_edges = false;
  Task a("/job:a", settings), b("/job:b", settings);
  ASSERT_TRUE(Pass(a, b, 100000));
  SetFake("memlock", std::to_string(testing::FakeStats().registered_bytes));
  auto fate = std::make_shared<Fate>();
  GrpcOf fallback(fate);
  const std::vector<int64_t> dims = {16 << 20};
  const auto payload = std::make_shared<Payload>(16 << 20, 1);  // not in the arena
  EXPECT_TRUE(a.PeerTo(b)
                  ->Send(testing::Tensor(501, kKey, payload, dims), Task::CallTo(b), &fallback)
                  .ok());
  EXPECT_EQ(fate->sends.load(), 1);
  const auto catcher = Receive(b, a, 501);
  EXPECT_TRUE(Eventually([&] { return catcher->grpc_asks() == 1; }));
  EXPECT_TRUE(catcher->Claim());
  EXPECT_TRUE(Pass(a, b, 100000)) << "the link is as good as before";
}

}  // namespace
}  // namespace rdma_transport
