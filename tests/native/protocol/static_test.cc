#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "protocol/counters.h"
#include "task.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::CountingGrpc;
using testing::Eventually;
using testing::Payload;
using testing::Task;
using testing::Tensor;
using testing::TestSettings;

constexpr size_t kBytes = 40000;
const std::vector<int64_t> kDims = {static_cast<int64_t>(kBytes)};
const std::string kEdge = "/job:a;1;/job:b;edge";
const std::string kKey = kEdge + ";0:0";

EdgeSpec Spec() { return {kEdge, 4, kDims, kBytes}; }

class StaticTest : public ::testing::TestWithParam<bool> {
 protected:
  // What the tasks of an earlier test had lent when they ended counts no more.
  void SetUp() override { GlobalCounters().outstanding_tensors.store(0); }

  // Both tasks with slots at the source (zero copy) or at the receiver.
  static Settings MakeSettings() {
    Settings settings = TestSettings();
    settings.zero_copy = GetParam();
    return settings;
  }

  Delivery Pass(int64_t step, const std::shared_ptr<Payload>& payload,
                const std::vector<int64_t>& dims = kDims, const std::string& key = kKey) {
    CountingGrpc fallback(&grpc_sends_);
    auto catcher = std::make_shared<Catcher>();
    b_.endpoint().Receive(b_.PeerTo(a_), step, key, catcher, Task::CallTo(a_));
    EXPECT_TRUE(
        a_.PeerTo(b_)->Send(Tensor(step, key, payload, dims), Task::CallTo(b_), &fallback).ok());
    Delivery delivery = catcher->Get();
    EXPECT_TRUE(delivery.status.ok()) << delivery.status.message();
    return delivery;
  }
  std::shared_ptr<Payload> Bytes(int seed, size_t length = kBytes) {
    return std::make_shared<Payload>(length, seed, &a_.arena());
  }
  // Passes the same shape until the edge is static and its slots are agreed on.
  void WarmUp() {
    for (int i = 0; i < 20; ++i) PassAndWait(Bytes(i));
    ASSERT_EQ(PassAndWait(Bytes(1)), Mode::kStatic);
  }
  // Lets the slot or the loan come back before the next tensor is sent.
  Mode PassAndWait(const std::shared_ptr<Payload>& payload) {
    const Mode mode = Pass(++step_, payload).mode;
    EXPECT_TRUE(Eventually([&] { return Outstanding() == 0; }));
    return mode;
  }
  uint64_t Outstanding() {
    const uint64_t lent = static_cast<uint64_t>(GlobalCounters().outstanding_tensors.load());
    return lent + Report().busy;
  }
  EdgeReport Report() {
    std::vector<EdgeReport> reports;
    a_.endpoint().ReportEdges(&reports);
    for (const EdgeReport& report : reports) {
      if (report.spec == Spec()) return report;
    }
    return {};
  }

  size_t StaticShapes() {
    std::vector<EdgeReport> reports;
    a_.endpoint().ReportEdges(&reports);
    return static_cast<size_t>(
        std::count_if(reports.begin(), reports.end(), [](const auto& r) { return r.is_static; }));
  }
  // As if no tensor came in the meantime; edges without their plans, too.
  void GiveBack(Nanos since) {
    for (const auto& link : a_.endpoint().links().All()) {
      link->static_edges().GiveBack(since, Now());
    }
  }

  Task a_{"/job:a", MakeSettings()};
  Task b_{"/job:b", MakeSettings()};
  int64_t step_ = 0;
  std::atomic<int> grpc_sends_{0};
};

TEST_P(StaticTest, AnEdgeThatKeepsItsShapeBecomesStatic) {
  std::vector<Mode> modes;
  for (int i = 0; i < 12; ++i) {
    const Delivery delivery = Pass(++step_, Bytes(i));
    modes.push_back(delivery.mode);
    ASSERT_TRUE(Payload::Matches(delivery.data, kBytes, i));
  }
  EXPECT_EQ(modes.front(), Mode::kDynamic);
  EXPECT_TRUE(Eventually([&] { return Pass(++step_, Bytes(1)).mode == Mode::kStatic; }));
  EXPECT_TRUE(Report().is_static);
  EXPECT_FALSE(Report().planned);
}

TEST_P(StaticTest, AfterWarmUpNothingIsAgreedOnOrRegisteredAnyMore) {
  WarmUp();
  const auto payload = Bytes(3);
  PassAndWait(payload);
  const uint64_t slots = GlobalCounters().plan.slot_allocations.load();
  const uint64_t registrations = a_.arena().Stats().registrations;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(PassAndWait(payload), Mode::kStatic);
  }
  EXPECT_EQ(GlobalCounters().plan.slot_allocations.load(), slots);
  EXPECT_EQ(a_.arena().Stats().registrations, registrations);
}

TEST_P(StaticTest, APlannedEdgeIsStaticFromItsFirstTensor) {
  PlannedEdge planned;
  planned.spec = Spec();
  if (GetParam()) planned.pools.push_back(a_.runtime().slots()->Reserve("site", kBytes, 2));
  a_.PeerTo(b_)->Connect(Task::CallTo(b_));
  a_.PeerTo(b_)->Plan("graph", {planned});
  // No slot of the receiver is for later steps.
  const size_t expected = GetParam() && testing::OnShm() ? 2 : 1;
  ASSERT_TRUE(Eventually([&] { return Report().slots == expected; }));
  const uint64_t slots = GlobalCounters().plan.slot_allocations.load();
  for (int i = 0; i < 5; ++i) {
    char* block =
        GetParam() ? a_.runtime().slots()->Allocate("site", kBytes) : a_.arena().Allocate(kBytes);
    ASSERT_NE(block, nullptr);
    std::memset(block, i, kBytes);
    Outgoing tensor;
    tensor.step = ++step_;
    tensor.key = kKey;
    tensor.dtype = 4;
    tensor.dims = kDims.data();
    tensor.rank = 1;
    tensor.data = tensor.block = block;
    tensor.bytes = kBytes;
    struct Block {
      Task* task;
      char* address;
      ~Block() {
        if (!task->runtime().slots()->Free(address)) task->arena().Free(address);
      }
    };
    tensor.owner = OwnerRef::Holding(std::shared_ptr<Block>(new Block{&a_, block}));
    CountingGrpc fallback(&grpc_sends_);
    auto catcher = std::make_shared<Catcher>();
    b_.endpoint().Receive(b_.PeerTo(a_), step_, kKey, catcher, Task::CallTo(a_));
    ASSERT_TRUE(a_.PeerTo(b_)->Send(std::move(tensor), Task::CallTo(b_), &fallback).ok());
    {
      const Delivery delivery = catcher->Get();
      EXPECT_EQ(delivery.mode, Mode::kStatic);
      EXPECT_EQ(delivery.data[kBytes - 1], i);
    }
    ASSERT_TRUE(Eventually([&] { return Outstanding() == 0; }));
  }
  EXPECT_EQ(GlobalCounters().plan.slot_allocations.load(), slots);
  EXPECT_TRUE(Report().planned);
  a_.endpoint().Unplan("graph");
  EXPECT_FALSE(Report().is_static);
}

TEST_P(StaticTest, TheReceiverProvidesAsManySlotsAsThePlanCharged) {
  if (GetParam()) GTEST_SKIP() << "the slots are the sender's";
  PlannedEdge planned;
  planned.spec = Spec();
  planned.slots = memory::SlotsOfEdge(/*in_loop=*/true);
  a_.PeerTo(b_)->Connect(Task::CallTo(b_));
  a_.PeerTo(b_)->Plan("graph", {planned});
  EXPECT_TRUE(Eventually([&] { return Report().slots == memory::kLoopSlots; }));
}

TEST_P(StaticTest, APlanWaitsForTheFirstLink) {
  PlannedEdge planned;
  planned.spec = Spec();
  a_.PeerTo(b_)->Plan("graph", {planned});
  EXPECT_FALSE(Report().planned) << "there is no link";
  const Mode first = PassAndWait(Bytes(1));
  EXPECT_TRUE(Report().planned);
  EXPECT_TRUE(first == Mode::kStatic || Report().at_receiver);
  ASSERT_TRUE(Eventually([&] { return Report().slots > 0; }));
  EXPECT_EQ(PassAndWait(Bytes(2)), Mode::kStatic);
}

TEST_P(StaticTest, AnEdgeWhoseKeyNoNotificationCanCarryIsNotPlanned) {
  PlannedEdge planned;
  planned.spec = Spec();
  planned.spec.key = std::string(kMaxKeyLength + 1, 'k');
  a_.PeerTo(b_)->Plan("graph", {planned});
  WarmUp();
  EXPECT_EQ(a_.PeerTo(b_)->Stats().links, 1u);
}

TEST_P(StaticTest, WhatWasPromotedGoesWithItsGraphToo) {
  PlannedEdge unknown;
  unknown.spec.key = kEdge;
  a_.PeerTo(b_)->Plan("graph", {unknown});
  a_.PeerTo(b_)->Plan("other graph", {unknown});
  EXPECT_FALSE(Report().is_static);
  WarmUp();
  a_.endpoint().Unplan("graph");
  EXPECT_TRUE(Report().is_static);
  a_.endpoint().Unplan("other graph");
  EXPECT_FALSE(Report().is_static);
  EXPECT_EQ(a_.runtime().slots()->Stats().pools, 0u);
  WarmUp();
}

TEST_P(StaticTest, APlanThatWasWrongNeverGivesAWrongTensor) {
  PlannedEdge planned;
  planned.spec = Spec();
  planned.spec.dims = {static_cast<int64_t>(kBytes / 4), 4};  // as many bytes
  a_.PeerTo(b_)->Plan("graph", {planned});
  planned.spec.dims = {12345};
  planned.spec.bytes = 12345;
  a_.PeerTo(b_)->Plan("other graph", {planned});
  planned.spec.dims = kDims;
  planned.spec.bytes = kBytes;
  planned.spec.dtype = 7;
  a_.PeerTo(b_)->Plan("third graph", {planned});
  for (int i = 0; i < 20; ++i) {
    const Delivery delivery = Pass(++step_, Bytes(i));
    ASSERT_EQ(delivery.dims, kDims);
    ASSERT_EQ(delivery.dtype, 4u);
    ASSERT_TRUE(Payload::Matches(delivery.data, kBytes, i));
  }
}

TEST_P(StaticTest, AnotherShapeIsNeverPutIntoASlot) {
  WarmUp();
  const std::vector<int64_t> longer = {50000};
  const std::vector<int64_t> reshaped = {static_cast<int64_t>(kBytes / 2), 2};
  Delivery delivery = Pass(++step_, Bytes(7, 50000), longer);
  EXPECT_EQ(delivery.mode, Mode::kDynamic);
  EXPECT_EQ(delivery.dims, longer);
  EXPECT_TRUE(Payload::Matches(delivery.data, 50000, 7));
  // As many bytes, but another shape.
  delivery = Pass(++step_, Bytes(8), reshaped);
  EXPECT_EQ(delivery.dims, reshaped);
  EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, 8));
  delivery = {};
  EXPECT_TRUE(Eventually([&] { return Outstanding() == 0; }));
  EXPECT_EQ(PassAndWait(Bytes(9)), Mode::kStatic) << "the old shape is still agreed on";
}

// As batches of sentences that are padded to one of many lengths.
TEST_P(StaticTest, ManyShapesInTurnsAreAllStatic) {
  constexpr size_t kShapes = 64;
  const auto pass = [&](size_t shape) {
    const size_t bytes = kBytes + 64 * shape;
    const Delivery delivery =
        Pass(++step_, Bytes(static_cast<int>(shape), bytes), {static_cast<int64_t>(bytes)});
    EXPECT_TRUE(Payload::Matches(delivery.data, bytes, static_cast<int>(shape)));
    return delivery.mode;
  };
  EXPECT_TRUE(Eventually([&] {
    size_t tensors = 0;
    for (size_t shape = 0; shape < kShapes; ++shape) tensors += pass(shape) == Mode::kStatic;
    return tensors == kShapes;
  }));
  EXPECT_EQ(StaticShapes(), kShapes);
}

TEST_P(StaticTest, ShapesThatAreUsedNoMoreGiveTheirMemoryBack) {
  const std::vector<int64_t> longer = {50000};
  for (int i = 0; i < 5; ++i) Pass(++step_, Bytes(i, 50000), longer);
  const Nanos since = Now();
  WarmUp();
  EXPECT_EQ(StaticShapes(), 2u);
  EXPECT_TRUE(Eventually([&] {
    GiveBack(since);
    return StaticShapes() == 1;
  }));
  EXPECT_TRUE(Report().is_static);
  EXPECT_EQ(PassAndWait(Bytes(1)), Mode::kStatic);
  EXPECT_TRUE(Eventually([&] {
    GiveBack(Now());
    return StaticShapes() == 0;
  }));
  EXPECT_EQ(a_.runtime().slots()->Stats().pools, 0u);
  EXPECT_TRUE(Eventually([&] {
    return a_.arena().Stats().used_bytes == 0 &&
           b_.runtime().receive_arena()->Stats().used_bytes == 0;
  }));
  WarmUp();
}

TEST_P(StaticTest, APlanThatComesWithTheTensorMakesTheEdgeStatic) {
  auto plan = std::make_shared<const EdgePlan>(EdgePlan{memory::kSlots, "site"});
  const auto pass = [&] {
    CountingGrpc fallback(&grpc_sends_);
    auto catcher = std::make_shared<Catcher>();
    b_.endpoint().Receive(b_.PeerTo(a_), ++step_, kKey, catcher, Task::CallTo(a_));
    const auto payload = Bytes(1);
    Outgoing tensor = Tensor(step_, kKey, payload, kDims);
    tensor.plan = plan;
    EXPECT_TRUE(a_.PeerTo(b_)->Send(std::move(tensor), Task::CallTo(b_), &fallback).ok());
    return catcher->Get().mode;
  };
  const Mode first = pass();
  EXPECT_TRUE(first == Mode::kStatic || Report().at_receiver);
  EXPECT_TRUE(Report().planned);
  EXPECT_TRUE(Eventually([&] { return pass() == Mode::kStatic; }));
  GiveBack(0);
  EXPECT_TRUE(Report().is_static);
  plan.reset();
  EXPECT_TRUE(Eventually([&] {
    GiveBack(0);
    return StaticShapes() == 0;
  })) << "its function is gone";
}

TEST_P(StaticTest, AnEdgeOfARegisteredGraphKeepsItsSlots) {
  PlannedEdge planned;
  planned.spec = Spec();
  a_.PeerTo(b_)->Plan("graph", {planned});
  PassAndWait(Bytes(1));
  GiveBack(Now());
  EXPECT_TRUE(Report().is_static);
}

TEST_P(StaticTest, AReaderThatKeepsTensorsNeverSeesThemChange) {
  WarmUp();
  std::vector<Delivery> kept;
  for (int i = 0; i < 40; ++i) kept.push_back(Pass(++step_, Bytes(i)));
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(Payload::Matches(kept[i].data, kBytes, i)) << i;
  if (!GetParam()) {
    EXPECT_GT(GlobalCounters().plan.misses.Get()["no free slot"], 0u);
  }
  kept.clear();
  ASSERT_TRUE(Eventually([&] { return Pass(++step_, Bytes(1)).mode == Mode::kStatic; }));
}

TEST_P(StaticTest, IterationsOfALoopShareTheEdge) {
  WarmUp();
  for (int i = 0; i < 20; ++i) {
    const std::string key = kEdge + ";7:" + std::to_string(i);
    const Delivery delivery = Pass(step_ + 1, Bytes(i), kDims, key);
    EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, i));
  }
  EXPECT_GT(Report().hits, 15u);
}

TEST_P(StaticTest, TensorsFromOutsideTheArenaAreCopiedIntoTheSlot) {
  WarmUp();
  for (int i = 0; i < 5; ++i) {
    const Delivery delivery = Pass(++step_, std::make_shared<Payload>(kBytes, i));
    EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, i));
  }
  ASSERT_TRUE(Eventually([&] { return Outstanding() == 0; }));
  const uint64_t staged = Report().staged_bytes;
  EXPECT_EQ(PassAndWait(std::make_shared<Payload>(kBytes, 1)), Mode::kStatic);
  const bool maps = GetParam() && testing::OnShm();  // else the slots are the receiver's
  const bool staged_there = maps || testing::OnCard();
  EXPECT_EQ(Report().staged_bytes - staged, staged_there ? kBytes : 0)
      << "a processor writes from anywhere";
}

TEST_P(StaticTest, EverythingComesBackWhenItIsDropped) {
  WarmUp();
  Pass(++step_, Bytes(1));
  EXPECT_TRUE(Eventually([&] { return a_.arena().Stats().used_bytes == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Placement, StaticTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "AtSource" : "AtReceiver"; });

}  // namespace
}  // namespace rdma_transport
