// What a delivery makes ready runs once, here or on the pool, however long a piece of it takes.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arena_fixture.h"
#include "fabric/registry.h"
#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Eventually;
using testing::Task;
using testing::Tensor;

constexpr int kTensors = 8;
constexpr int kSteps = 50;

// A thread for each piece.
class Threads final : public Poller::Pool {
 public:
  ~Threads() override { Join(); }
  // Waits for all pieces. What they hold belongs to runtimes, which have stopped and still exist.
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Schedule(std::function<void()> work) override {
    std::lock_guard<std::mutex> lock(mu_);
    threads_.emplace_back(std::move(work));
  }
  void RunHere(const std::function<void()>& work) override { work(); }

 private:
  std::mutex mu_;
  std::vector<std::thread> threads_;
};

// Defers `work` when its tensor comes; the first one waits for the others to be sent.
class Deferring final : public PendingRecv {
 public:
  Deferring(const std::atomic<bool>* all_sent, std::function<void()> work)
      : all_sent_(all_sent), work_(std::move(work)) {}

  void OnDelivery(Delivery delivery) override {
    EXPECT_TRUE(delivery.status.ok()) << delivery.status.message();
    while (!all_sent_->load()) std::this_thread::yield();
    if (!Poller::Defer(&work_)) work_();
  }
  void OnUseGrpc(const std::string&) override {}

 private:
  const std::atomic<bool>* const all_sent_;
  std::function<void()> work_;
};

class DeferredTest : public testing::ProtocolTest {
 protected:
  explicit DeferredTest(const Settings& settings = testing::TestSettings())
      : b_{"/job:b", settings} {}

  // Each step has pieces that `work` is called with the number of; returns how often each ran.
  void Step(int64_t step, const std::function<void(int)>& work) {
    std::atomic<bool> all_sent{false};
    std::vector<std::atomic<int>> runs(kTensors);
    for (int i = 0; i < kTensors; ++i) {
      const std::string key = "edge" + std::to_string(i);
      auto recv = std::make_shared<Deferring>(&all_sent, [&, i] {
        work(i);
        ++runs[i];
      });
      b_.endpoint().Receive(b_.PeerTo(a_), step, key, recv, Task::CallTo(a_));
    }
    const auto payload = Bytes(64, 1);
    for (int i = 0; i < kTensors; ++i) {
      const std::string key = "edge" + std::to_string(i);
      EXPECT_TRUE(Send(a_, b_, Tensor(step, key, payload, {64})).ok());
    }
    all_sent.store(true);
    EXPECT_TRUE(Eventually([&] {
      int sum = 0;
      for (const auto& each : runs) sum += each.load();
      return sum >= kTensors;
    }));
    for (const auto& each : runs) EXPECT_EQ(each.load(), 1);
  }

  void TearDown() override {
    b_.runtime().Stop();
    pool_.Join();
  }

  Threads pool_;
  Task a_{"/job:a"};
  Task b_;
};

// Each GiB of slots takes about a second to come.
TEST_F(DeferredTest, TensorsArriveWhileMemoryForSlotsIsMade) {
  Threads pool;
  Settings settings = testing::TestSettings();
  settings.zero_copy = false;
  std::unique_ptr<fabric::Device> device;
  ASSERT_TRUE(fabric::OpenDevice(settings, &device).ok());
  auto slow = std::make_unique<testing::SlowDevice>(std::move(device));
  testing::SlowDevice* const memory = slow.get();
  Task a("/job:a", settings), b("/job:b", settings, std::move(slow));
  b.runtime().SetPool(&pool);
  const auto pass = [&](int64_t step) {
    const auto recv = Receive(b, a, step, "small");
    EXPECT_TRUE(Send(a, b, Tensor(step, "small", Bytes(64, 1), {64})).ok());
    return recv->Get().status.ok();
  };
  ASSERT_TRUE(pass(1));
  memory->SetOpen(false);
  PlannedEdge planned;
  planned.spec = {"large", 4, {40000}, 40000};
  a.PeerTo(b)->Plan("graph", {planned});
  memory->AwaitSomebody();
  EXPECT_TRUE(pass(2));
  memory->SetOpen(true);
  EXPECT_TRUE(Eventually([&] {
    std::vector<EdgeReport> reports;
    a.endpoint().ReportEdges(&reports);
    return reports.size() == 1 && reports[0].slots == 1;
  }));
  b.runtime().Stop();
  pool.Join();
}

// Its threads look for stuck work every 20 ms.
class OftenLookingTest : public DeferredTest {
 protected:
  OftenLookingTest() : DeferredTest(OftenLooking()) {}
  static Settings OftenLooking() {
    Settings settings = testing::TestSettings();
    settings.peer_timeout = 320 * kMillisecond;
    settings.spin = kMillisecond;
    return settings;
  }
};

TEST_F(DeferredTest, WhatFollowsLongWorkDoesNotWaitForIt) {
  b_.runtime().SetPool(&pool_);
  for (int step = 1; step <= kSteps; ++step) {
    std::atomic<int> others{0};
    Step(step, [&](int piece) {
      if (piece != 0) {
        ++others;
        return;
      }
      Poller::LongWorkAhead();
      EXPECT_TRUE(Eventually([&] { return others.load() == kTensors - 1; }));
    });
  }
}

TEST_F(DeferredTest, WhatFollowsWorkThatIsExpectedToTakeLongDoesNotWaitForIt) {
  b_.runtime().SetPool(&pool_);
  for (int step = 1; step <= kSteps; ++step) {
    std::atomic<int> others{0};
    Step(step, [&](int piece) {
      if (piece != 0) {
        ++others;
        return;
      }
      Poller::WorkAhead(kSecond);
      EXPECT_TRUE(Eventually([&] { return others.load() == kTensors - 1; }));
    });
  }
}

TEST_F(DeferredTest, MoreWorkDoesNotWaitForLongWork) {
  b_.runtime().SetPool(&pool_);
  for (int step = 1; step <= kSteps; ++step) {
    std::atomic<bool> ran{false};
    Step(step, [&](int piece) {
      if (piece != 0) return;
      std::function<void()> more = [&] { ran.store(true); };
      if (!Poller::DeferMore(&more)) more();  // on the pool
      Poller::LongWorkAhead();
      EXPECT_FALSE(Poller::DeferMore(&more)) << "another thread took over";
      EXPECT_TRUE(Eventually([&] { return ran.load(); }));
    });
  }
}

// As a lock would that another thread holds until the next tensor comes.
TEST_F(DeferredTest, WorkThatIsStuckHoldsUpNothingElse) {
  b_.runtime().SetPool(&pool_);
  std::atomic<int> others{0};
  std::atomic<bool> next_came{false};
  std::thread next([&] {
    EXPECT_TRUE(Eventually([&] { return others.load() == kTensors - 1; })) << "the same batch";
    Step(2, [&](int) { next_came.store(true); });
  });
  Step(1, [&](int piece) {
    if (piece != 0) {
      ++others;
      return;
    }
    EXPECT_TRUE(Eventually([&] { return next_came.load(); })) << "what comes later";
  });
  next.join();
}

// The others looked for stuck work shortly before it counts as stuck, and then spun or napped.
TEST_F(OftenLookingTest, WorkThatGetsStuckAfterOtherWorkHoldsUpNothing) {
  b_.runtime().SetPool(&pool_);
  for (int round = 0; round < kSteps; ++round) {
    Step(2 * round + 1, [](int) {});
    std::this_thread::sleep_for(std::chrono::microseconds(3 * round));
    std::atomic<int> others{0};
    Step(2 * round + 2, [&](int piece) {
      if (piece != 0) {
        ++others;
        return;
      }
      EXPECT_TRUE(Eventually([&] { return others.load() == kTensors - 1; }));
    });
  }
}

}  // namespace
}  // namespace rdma_transport
