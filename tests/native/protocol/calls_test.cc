// A call over a link is made once at most and ends once: with its reply, when it is canceled, or
// with the link. What runs for a caller that is lost is canceled.
#include "protocol/calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "lines_with.h"
#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Eventually;
using testing::ProtocolTest;
using testing::Task;
using testing::Tensor;
using testing::TestSettings;

class Caller final : public PendingCall {
 public:
  void OnDelivery(Delivery delivery) override {
    if (ends_.fetch_add(1) == 0) end_.set_value(std::move(delivery));
  }
  Delivery Get() {
    auto end = end_.get_future();
    if (end.wait_for(std::chrono::seconds(20)) == std::future_status::ready) return end.get();
    Delivery late;
    late.status = Status(Code::kDeadlineExceeded, "the call did not end");
    return late;
  }
  int ends() const { return ends_.load(); }

 private:
  std::promise<Delivery> end_;
  std::atomic<int> ends_{0};
};

// Keeps calls until the test answers them.
class Service final : public CallHandler {
 public:
  void OnCall(std::shared_ptr<IncomingCall> call) override {
    std::lock_guard<std::mutex> lock(mu_);
    calls_.push_back(std::move(call));
  }
  // Returns the next call, or null if none comes.
  std::shared_ptr<IncomingCall> Take() {
    std::shared_ptr<IncomingCall> call;
    Eventually([&] {
      std::lock_guard<std::mutex> lock(mu_);
      if (calls_.empty()) return false;
      call = std::move(calls_.front());
      calls_.pop_front();
      return true;
    });
    return call;
  }

 private:
  std::mutex mu_;
  std::deque<std::shared_ptr<IncomingCall>> calls_;
};

class CallsTest : public ProtocolTest {
 protected:
  // Links `from`, whose calls `service` of `to` gets.
  void Link(Task& from, Task& to) {
    to.endpoint().SetCallHandler(&service_);
    ASSERT_TRUE(Send(from, to, Tensor(-1, "link", Bytes(10, 1), {})).ok());
    ASSERT_TRUE(Receive(to, from, -1, "link")->Get().status.ok());
  }
  static std::function<void()> Call(Task& from, Task& to, const std::shared_ptr<Caller>& caller,
                                    const std::string& request = "request") {
    return from.PeerTo(to)->Call(CallMethod::kRunGraph, request, caller);
  }

  Service service_;
};

TEST_F(CallsTest, GetTheirReplies) {
  Task a("a"), b("b");
  Link(a, b);
  auto first = std::make_shared<Caller>(), second = std::make_shared<Caller>();
  ASSERT_NE(Call(a, b, first, "first"), nullptr);
  ASSERT_NE(Call(a, b, second, std::string(kMaxCallLength, 's')), nullptr);
  const auto one = service_.Take(), other = service_.Take();
  ASSERT_TRUE(one != nullptr && other != nullptr);
  EXPECT_EQ(one->method(), CallMethod::kRunGraph);
  EXPECT_EQ(one->request(), "first");
  EXPECT_EQ(other->request(), std::string(kMaxCallLength, 's'));
  other->Fail("it failed");
  const Delivery failed = second->Get();
  EXPECT_FALSE(failed.status.ok());
  EXPECT_EQ(failed.error, "it failed");
  EXPECT_EQ(first->ends(), 0);
  one->Succeed();
  one->Fail("a second answer");
  EXPECT_TRUE(first->Get().status.ok());
  EXPECT_EQ(first->ends() + second->ends(), 2);
}

TEST_F(CallsTest, AreNotMadeWithoutALinkOrIfTooLong) {
  Task a("a"), b("b");
  auto caller = std::make_shared<Caller>();
  EXPECT_EQ(Call(a, b, caller), nullptr);
  Link(a, b);
  EXPECT_EQ(Call(a, b, caller, std::string(kMaxCallLength + 1, 's')), nullptr);
  EXPECT_FALSE(caller->claimed());
}

TEST_F(CallsTest, AreNotMadeIfTheSettingsForbidThem) {
  Settings settings = TestSettings();
  settings.calls_over_fabric = false;
  Task a("a", settings), b("b");
  Link(a, b);
  EXPECT_EQ(Call(a, b, std::make_shared<Caller>()), nullptr);
}

TEST_F(CallsTest, AreRefusedWhereNobodyServesThem) {
  Task a("a"), b("b");
  Link(a, b);
  b.endpoint().SetCallHandler(nullptr);
  auto caller = std::make_shared<Caller>();
  ASSERT_NE(Call(a, b, caller), nullptr);
  const Delivery refused = caller->Get();
  EXPECT_EQ(refused.status.code(), Code::kUnimplemented);
  EXPECT_TRUE(refused.error.empty());
}

TEST_F(CallsTest, AreCanceledByTheirCaller) {
  Task a("a"), b("b");
  Link(a, b);
  auto caller = std::make_shared<Caller>();
  const auto cancel = Call(a, b, caller);
  ASSERT_NE(cancel, nullptr);
  const auto call = service_.Take();
  ASSERT_NE(call, nullptr);
  std::atomic<int> canceled{0};
  call->OnCancel([&] { ++canceled; });
  ASSERT_TRUE(caller->Claim());
  cancel();
  EXPECT_TRUE(Eventually([&] { return canceled == 1; }));
  call->Fail("canceled");
  // The link carries the next one, and the late reply disturbs nothing.
  auto next = std::make_shared<Caller>();
  ASSERT_NE(Call(a, b, next), nullptr);
  service_.Take()->Succeed();
  EXPECT_TRUE(next->Get().status.ok());
  EXPECT_EQ(caller->ends(), 0);
  EXPECT_EQ(canceled, 1);
}

TEST_F(CallsTest, LearnOfACancelThatCameFirst) {
  Task a("a"), b("b");
  Link(a, b);
  auto caller = std::make_shared<Caller>();
  const auto cancel = Call(a, b, caller);
  ASSERT_NE(cancel, nullptr);
  const auto call = service_.Take();
  ASSERT_TRUE(call != nullptr && caller->Claim());
  cancel();
  std::atomic<int> canceled{0};
  EXPECT_TRUE(Eventually([&] {
    call->OnCancel([&] { ++canceled; });
    return canceled > 0;
  }));
  call->Succeed();
}

TEST_F(CallsTest, FailWithTheirPeer) {
  Task a("a");
  auto b = std::make_unique<Task>("b");
  Link(a, *b);
  auto caller = std::make_shared<Caller>();
  ASSERT_NE(Call(a, *b, caller), nullptr);
  const auto call = service_.Take();
  b.reset();
  EXPECT_EQ(caller->Get().status.code(), Code::kUnavailable);
  call->Succeed();  // nobody is there
  EXPECT_EQ(caller->ends(), 1);
}

TEST_F(CallsTest, FailWithASilentPeer) {
  Settings settings = TestSettings();
  settings.peer_timeout = 500 * kMillisecond;
  Task a("a", settings), b("b");
  Link(a, b);
  auto caller = std::make_shared<Caller>();
  ASSERT_NE(Call(a, b, caller), nullptr);
  service_.Take();
  b.Stop();
  EXPECT_EQ(caller->Get().status.code(), Code::kUnavailable);
  EXPECT_EQ(Call(a, b, std::make_shared<Caller>()), nullptr);
}

TEST_F(CallsTest, OfASilentCallerAreReportedOnce) {
  Settings settings = TestSettings();
  settings.peer_timeout = 200 * kMillisecond;
  Task a("a"), b("b", settings);
  Link(a, b);
  auto caller = std::make_shared<Caller>();
  ASSERT_NE(Call(a, b, caller), nullptr);
  const auto runs = service_.Take();
  ASSERT_NE(runs, nullptr);
  const testing::LinesWith reports("has not answered");
  a.Stop();
  ASSERT_TRUE(Eventually([&] { return reports.count() > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // about 16 ticks
  EXPECT_EQ(reports.count(), 1);
  runs->Succeed();
}

TEST_F(CallsTest, EndWithTheirCaller) {
  Settings settings = TestSettings();
  settings.peer_timeout = kSecond;  // a card notices only when something is sent
  auto a = std::make_unique<Task>("a");
  Task b("b", settings);
  Link(*a, b);
  ASSERT_NE(Call(*a, b, std::make_shared<Caller>()), nullptr);
  const auto call = service_.Take();
  ASSERT_NE(call, nullptr);
  std::atomic<bool> canceled{false};
  call->OnCancel([&] { canceled = true; });
  a.reset();
  EXPECT_TRUE(Eventually([&] { return canceled.load(); }));
  call->Fail("canceled");
}

}  // namespace
}  // namespace rdma_transport
