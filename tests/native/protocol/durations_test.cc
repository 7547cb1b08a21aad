// The histograms of a peer's traffic: each tensor is counted once.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Eventually;
using testing::ProtocolTest;
using testing::Task;
using testing::Tensor;
using testing::TestSettings;

class DurationsTest : public ProtocolTest {
 protected:
  // Without zero copy, each large tensor is read or written on every fabric.
  static Settings Copying() {
    Settings settings = TestSettings();
    settings.zero_copy = false;
    return settings;
  }
  // Sends, receives and drops a tensor; returns how it came.
  Mode Pass(int step, const std::string& key, size_t length) {
    const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
    EXPECT_TRUE(Send(a_, b_, Tensor(step, key, Bytes(length, step, &a_.arena()), dims)).ok());
    const Delivery delivery = Receive(b_, a_, step, key)->Get();
    EXPECT_TRUE(delivery.status.ok()) << delivery.status.message();
    return delivery.mode;
  }
  // Passes large tensors, at first dynamic ones, until some were static; returns how many in all.
  int PassLarge() {
    int step = 0, came_static = 0;
    EXPECT_TRUE(Eventually([&] {
      came_static += Pass(++step, "large;0:0", 100000) == Mode::kStatic ? 1 : 0;
      return came_static == 3;
    }));
    return step;
  }
  static uint64_t CountOf(const Histogram& histogram) {
    Histogram::Counts counts;
    histogram.AddTo(&counts);
    return std::accumulate(counts.buckets.begin(), counts.buckets.end(), uint64_t{0});
  }
  const Traffic& AtA() { return *a_.PeerTo(b_)->traffic(); }
  const Traffic& AtB() { return *b_.PeerTo(a_)->traffic(); }
  void ExpectAllCounted() {
    for (int mode = 0; mode < kModeCount; ++mode) {
      EXPECT_EQ(CountOf(AtB().receive_time[mode]), AtB().received[mode].tensors.load())
          << ModeName(static_cast<Mode>(mode));
    }
  }

  // Of each test its own: counters live as long as the process.
  const std::string name_ = ::testing::UnitTest::GetInstance()->current_test_info()->name();
  Task a_{"a of " + name_, Copying()};
  Task b_{"b of " + name_, Copying()};
};

TEST_F(DurationsTest, ReadsAndWritesAreCountedWhereTheyStart) {
  const auto passed = static_cast<uint64_t>(PassLarge());
  const uint64_t written = AtA().sent[static_cast<int>(Mode::kStatic)].tensors.load();
  EXPECT_GT(written, 0u);
  EXPECT_TRUE(Eventually([&] { return CountOf(AtA().write_time) == written; }));
  EXPECT_EQ(CountOf(AtB().read_time), passed - written);
  EXPECT_EQ(CountOf(AtA().read_time) + CountOf(AtB().write_time), 0u);
}

TEST_F(DurationsTest, TheTimeUntilTheTensorIsSentCounts) {
  constexpr Nanos kLate = 20 * kMillisecond;
  const auto catcher = Receive(b_, a_, 1, "late;0:0");
  std::this_thread::sleep_for(std::chrono::nanoseconds(kLate));
  ASSERT_TRUE(Send(a_, b_, Tensor(1, "late;0:0", Bytes(16, 1), {16})).ok());
  EXPECT_TRUE(catcher->Get().status.ok());
  Histogram::Counts counts;
  AtB().receive_time[static_cast<int>(Mode::kInline)].AddTo(&counts);
  EXPECT_GE(counts.sum, static_cast<uint64_t>(kLate));
}

TEST_F(DurationsTest, AReceiveThatFailsIsNotCounted) {
  Pass(1, "small;0:0", 16);
  const auto catcher = Receive(b_, a_, 2, "small;0:0");
  b_.endpoint().RestartStep(2);
  EXPECT_EQ(catcher->Get().status.code(), Code::kAborted);
  EXPECT_EQ(CountOf(AtB().receive_time[static_cast<int>(Mode::kInline)]), 1u);
  ExpectAllCounted();
}

}  // namespace
}  // namespace rdma_transport
