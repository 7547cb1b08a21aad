// What goes wrong at one certain moment, over a fabric that fails as it is told (faulty_fabric/).

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "faulty_fabric/faulty_task.h"
#include "forwarding_device.h"
#include "protocol/counters.h"
#include "recorder.h"

namespace rdma_transport::testing {
namespace {

constexpr size_t kBytes = 40000;
const std::vector<int64_t> kDims = {static_cast<int64_t>(kBytes)};
const std::string kEdge = "/job:a;1;/job:b;edge";
const std::string kKey = kEdge + ";0:0";
const Status kNoRoom(Code::kResourceExhausted, "the peer does not take its notifications");

// Keeps a payload, as TensorFlow's transport would.
class KeepingGrpc final : public FallbackSend {
 public:
  explicit KeepingGrpc(std::shared_ptr<Payload> payload) : payload_(std::move(payload)) {}
  Status Send() override { return OkStatus(); }
  std::unique_ptr<FallbackSend> Keep(bool) override {
    return std::make_unique<KeepingGrpc>(payload_);
  }
  void Fail(const Status&) override {}

 private:
  const std::shared_ptr<Payload> payload_;
};

class FaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GlobalCounters().outstanding_tensors.store(0);
    Violations::Take();
  }
  void TearDown() override {
    for (const std::string& violation : Violations::Take()) ADD_FAILURE() << violation;
  }

  static Settings WithZeroCopy(bool zero_copy) {
    Settings settings = TestSettings();
    settings.zero_copy = zero_copy;
    return settings;
  }
  void Make(bool zero_copy, const Faults& faults = {}) {
    a_ = std::make_unique<FaultyTask>("/job:a", WithZeroCopy(zero_copy), faults);
    b_ = std::make_unique<FaultyTask>("/job:b", WithZeroCopy(zero_copy), faults);
  }
  Task& a() { return *a_; }
  Task& b() { return *b_; }

  std::shared_ptr<Payload> Bytes(int seed, size_t length = kBytes) {
    return std::make_shared<Payload>(length, seed, &a().arena());
  }
  Status Send(int64_t step, const std::shared_ptr<Payload>& payload,
              const std::string& key = kKey) {
    CountingGrpc fallback(&grpc_sends_);
    const std::vector<int64_t> dims = {static_cast<int64_t>(payload->length())};
    return a().PeerTo(b())->Send(Tensor(step, key, payload, dims), Task::CallTo(b()), &fallback);
  }
  std::shared_ptr<Catcher> Receive(int64_t step, const std::string& key = kKey) {
    auto catcher = std::make_shared<Catcher>();
    b().endpoint().Receive(b().PeerTo(a()), step, key, catcher, Task::CallTo(a()));
    return catcher;
  }
  // Where tensors go now, for messages.
  std::string Routes() {
    std::string routes = std::to_string(grpc_sends_.load()) + " by gRPC";
    for (FaultyTask* task : {a_.get(), b_.get()}) {
      for (const PeerStats& peer : static_cast<Task&>(*task).endpoint().Stats()) {
        routes += "; to " + peer.task + " by " + peer.transport + " (" + peer.reason + ")";
      }
    }
    return routes;
  }
  Delivery Pass(int seed) {
    const auto catcher = Receive(++step_);
    const Status sent = Send(step_, Bytes(seed));
    EXPECT_TRUE(sent.ok()) << sent.message();
    Delivery delivery = catcher->Get();
    EXPECT_TRUE(delivery.status.ok()) << delivery.status.message() << "; " << Routes();
    EXPECT_TRUE(!delivery.status.ok() || Payload::Matches(delivery.data, kBytes, seed));
    return delivery;
  }
  void WarmUp() {
    for (int i = 0; i < 8; ++i) {
      Pass(i);
      ASSERT_TRUE(Eventually([&] { return Lent() == 0 && Busy() == 0; }));
    }
    ASSERT_EQ(Pass(9).mode, Mode::kStatic);
    ASSERT_TRUE(Eventually([&] { return Lent() == 0 && Busy() == 0; }));
  }
  uint64_t Lent() {
    uint64_t outstanding = 0;
    for (const PeerStats& peer : a().endpoint().Stats()) outstanding += peer.outstanding;
    return outstanding;
  }
  uint64_t Busy() {
    std::vector<EdgeReport> edges;
    a().endpoint().ReportEdges(&edges);
    uint64_t busy = 0;
    for (const EdgeReport& edge : edges) busy += edge.busy;
    return busy;
  }

  std::unique_ptr<FaultyTask> a_;
  std::unique_ptr<FaultyTask> b_;
  int64_t step_ = 0;
  std::atomic<int> grpc_sends_{0};
};

TEST_F(FaultsTest, ASlotAtTheSinkIsLookedForBeforeItIsWritten) {
  // The decorator sees to it: a write to a region that Map() did not look for is a violation, and
  // was refused when the region's announcement still lay in the socket.
  Make(/*zero_copy=*/false);
  WarmUp();
}

TEST_F(FaultsTest, ASlotWhoseTensorWasRefusedIsFreeAgain) {
  Make(/*zero_copy=*/false);
  WarmUp();
  a_->dice().Order(Fault::kNotify, 0, kNoRoom);
  const auto catcher = Receive(++step_);
  EXPECT_EQ(Send(step_, Bytes(1)).code(), Code::kResourceExhausted);
  EXPECT_TRUE(Eventually([&] { return Busy() == 0; }));
  EXPECT_TRUE(catcher->Claim());
  b().endpoint().EndStep(step_);
  for (int i = 0; i < 20; ++i) Pass(i);
}

TEST_F(FaultsTest, ALoanComesBackThoughTheFirstWordOfItFoundNoRoom) {
  Make(/*zero_copy=*/true);
  Delivery delivery = Pass(1);
  ASSERT_NE(delivery.mode, Mode::kInline);
  b_->dice().Order(Fault::kNotify, 0, kNoRoom);
  b_->dice().Order(Fault::kNotify, 0, kNoRoom);
  delivery = Delivery();
  EXPECT_TRUE(Eventually([&] { return Lent() == 0; }));
}

TEST_F(FaultsTest, ASlotComesBackThoughTheFirstWordOfItFoundNoRoom) {
  Make(/*zero_copy=*/false);
  WarmUp();
  Delivery delivery = Pass(1);
  ASSERT_EQ(delivery.mode, Mode::kStatic);
  b_->dice().Order(Fault::kNotify, 0, kNoRoom);
  delivery = Delivery();
  EXPECT_TRUE(Eventually([&] { return Busy() == 0; }));
}

TEST_F(FaultsTest, ATensorThatWaitsForGrpcIsToldThoughTheFirstWordOfItFoundNoRoom) {
  Make(/*zero_copy=*/true);
  Pass(1);
  auto catcher = Receive(2, "strings");
  // It would be said on each of both tasks' links.
  for (int i = 0; i < 2; ++i) a_->dice().Order(Fault::kNotify, 0, kNoRoom);
  Outgoing strings;
  strings.step = 2;
  strings.key = "strings";
  strings.not_carried = "a string tensor";
  CountingGrpc fallback(&grpc_sends_);
  ASSERT_TRUE(a().PeerTo(b())->Send(std::move(strings), Task::CallTo(b()), &fallback).ok());
  EXPECT_TRUE(Eventually([&] { return catcher->grpc_asks() == 1; }));
  EXPECT_TRUE(catcher->Claim());
}

TEST_F(FaultsTest, ASlotThatCouldNotBeToldIsNotCounted) {
  if (!OnShm()) GTEST_SKIP() << "slots at the source need mapped memory";
  Make(/*zero_copy=*/true);
  for (int i = 0; i < 2; ++i) Pass(i);
  // The third tensor of a shape makes the edge static: the edge is told, then its first slot.
  a_->dice().Order(Fault::kNotify, 1, kNoRoom);
  for (int i = 0; i < 20; ++i) Pass(i);
  EXPECT_EQ(a_->device().breaks() + b_->device().breaks(), 0u);
  EXPECT_EQ(a().endpoint().Stats().front().links, 1u) << "a slot out of order ends the channel";
}

TEST_F(FaultsTest, APeerThatLacksSomethingForALinkIsAskedAgain) {
  Make(/*zero_copy=*/true);
  b_->dice().Order(Fault::kOpen, 0, Status(Code::kResourceExhausted, "too many open files"));
  ASSERT_TRUE(Send(1, Bytes(1)).ok());
  EXPECT_EQ(grpc_sends_.load(), 1);
  int64_t step = 1;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Send(++step, Bytes(1)).ok());
    return a().endpoint().Stats().front().linked;
  }));
}

// Its first channel ends as soon as it is open, as those of a card that fails.
class EndingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override {
    RDMA_RETURN_IF_ERROR(ForwardingDevice::Open(std::move(handler), channel));
    if (ended_.exchange(true)) return OkStatus();
    (*channel)->Close(Status(Code::kAborted, "the card has failed"));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the polling thread tells of it
    return OkStatus();
  }

 private:
  std::atomic<bool> ended_{false};
};

TEST_F(FaultsTest, ALinkMayEndWhileItIsOpened) {
  std::unique_ptr<fabric::Device> inner;
  ASSERT_TRUE(fabric::OpenDevice(TestSettings(), &inner).ok());
  Task from("/job:a", TestSettings(), std::make_unique<EndingDevice>(std::move(inner)));
  Task to("/job:b");
  const auto payload = std::make_shared<Payload>(kBytes, 1, &from.arena());
  int64_t step = 0;
  EXPECT_TRUE(Eventually([&] {
    CountingGrpc fallback(&grpc_sends_);
    from.PeerTo(to)
        ->Send(Tensor(++step, kKey, payload, kDims), Task::CallTo(to), &fallback)
        .IgnoreError();
    return from.linked();
  }));
}

TEST_F(FaultsTest, ATensorThatMayChangeIsNotReadWhenTheLinkIsThere) {
  Make(/*zero_copy=*/true);
  // No memory for a copy while the peer is asked; there is some when the link comes up.
  for (int i = 0; i < 2; ++i) a_->dice().Order(Fault::kAllocate, 0, kNoRoom);
  const auto payload = std::make_shared<Payload>(kBytes, 3);
  Outgoing tensor = Tensor(1, kKey, payload, kDims);
  tensor.mutable_source = true;
  CountingGrpc fallback(&grpc_sends_);
  ASSERT_TRUE(a().PeerTo(b())->Send(std::move(tensor), Task::CallTo(b()), &fallback).ok());
  std::fill(payload->data(), payload->data() + kBytes, 'x');
  const auto catcher = Receive(1);
  ASSERT_TRUE(Eventually([&] { return catcher->grpc_asks() + catcher->deliveries() > 0; }));
  EXPECT_EQ(catcher->deliveries(), 0) << "with the bytes that it has by now";
  EXPECT_TRUE(catcher->Claim());
}

TEST_F(FaultsTest, WhatALivingPeerMayReadStaysThoughItsLinkEnded) {
  if (!OnShm()) GTEST_SKIP() << "peers map nothing";
  Make(/*zero_copy=*/true);
  auto payload = Bytes(5);
  const std::weak_ptr<Payload> alive = payload;
  const auto catcher = Receive(1);
  ASSERT_TRUE(Send(1, payload).ok());
  payload.reset();
  Delivery delivery = catcher->Get();
  ASSERT_TRUE(delivery.status.ok());
  ASSERT_FALSE(delivery.exclusive);
  for (const bool first : {true, false}) {
    (first ? a_ : b_)->device().BreakAll(Status(Code::kAborted, "broken"));
    ASSERT_TRUE(Eventually([&] { return a().endpoint().links().UpTo("/job:b").empty(); }));
  }
  // Whoever gets the memory next would write there.
  EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, 5));
  std::vector<std::shared_ptr<Payload>> others;
  for (int i = 0; i < 50; ++i) others.push_back(Bytes(77));
  EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, 5));
  EXPECT_FALSE(alive.expired());
  others.clear();
  delivery = Delivery();
  EXPECT_TRUE(Eventually([&] { return alive.expired(); })) << "though the peer lives on";
  EXPECT_EQ(GlobalCounters().outstanding_tensors.load(), 0);
}

TEST_F(FaultsTest, WhatIsSentHomeStaysThoughItsLinkEnded) {
  if (!OnShm()) GTEST_SKIP() << "peers map nothing";
  Make(/*zero_copy=*/true);
  auto payload = Bytes(5);
  const std::weak_ptr<Payload> alive = payload;
  const auto out = Receive(1);
  ASSERT_TRUE(Send(1, payload).ok());
  payload.reset();
  auto mapped = std::make_shared<Delivery>(out->Get());
  ASSERT_TRUE(mapped->status.ok());
  // Back to where it came from, and let go of there.
  Outgoing tensor;
  tensor.step = 1;
  tensor.key = "home";
  tensor.dims = kDims.data();
  tensor.rank = 1;
  tensor.data = mapped->data;
  tensor.bytes = kBytes;
  tensor.owner = OwnerRef::Holding(mapped);
  auto home = std::make_shared<Catcher>();
  a().endpoint().Receive(a().PeerTo(b()), 1, "home", home, Task::CallTo(b()));
  CountingGrpc fallback(&grpc_sends_);
  ASSERT_TRUE(b().PeerTo(a())->Send(std::move(tensor), Task::CallTo(a()), &fallback).ok());
  Delivery delivery = home->Get();
  ASSERT_TRUE(delivery.status.ok()) << delivery.status.message();
  const std::weak_ptr<Delivery> lent = mapped;
  mapped.reset();
  for (FaultyTask* task : {a_.get(), b_.get()}) {
    task->device().BreakAll(Status(Code::kAborted, "broken"));
  }
  ASSERT_TRUE(Eventually([&] { return !a().linked() && !b().linked(); }));
  EXPECT_FALSE(Eventually([&] { return alive.expired(); }, std::chrono::milliseconds(300)));
  EXPECT_TRUE(Payload::Matches(delivery.data, kBytes, 5));
  delivery = Delivery();
  EXPECT_TRUE(Eventually([&] { return lent.expired() && alive.expired(); }));
}

TEST_F(FaultsTest, ATensorOnABrokenLinkGoesByGrpc) {
  if (testing::OnVerbs()) GTEST_SKIP() << "the peer's card takes it although the task does not";
  Make(/*zero_copy=*/true);
  Pass(1);
  // The receiver takes nothing more, as if it were busy, when the link breaks.
  b().Stop();
  const auto catcher = Receive(2);
  grpc_sends_.store(0);
  ASSERT_TRUE(Send(2, Bytes(2)).ok());
  EXPECT_EQ(grpc_sends_.load(), 0);
  a_->device().BreakAll(Status(Code::kAborted, "broken"));
  // So does the first one, if the receiver had not confirmed it.
  EXPECT_TRUE(Eventually([&] { return grpc_sends_.load() >= 1; })) << Routes();
  catcher->Claim();
}

TEST_F(FaultsTest, SentTensorsAreNotKeptWhenThePeerHasThem) {
  Make(/*zero_copy=*/true);
  Pass(1);
  const auto small = [&](int64_t step) {
    auto payload = std::make_shared<Payload>(64, 1);
    const std::weak_ptr<Payload> alive = payload;
    const std::vector<int64_t> dims = {64};
    KeepingGrpc fallback(payload);
    const auto catcher = Receive(step);
    EXPECT_TRUE(a().PeerTo(b())
                    ->Send(Tensor(step, kKey, payload, dims), Task::CallTo(b()), &fallback)
                    .ok());
    EXPECT_TRUE(catcher->Get().status.ok());
    return alive;
  };
  std::vector<std::weak_ptr<Payload>> sent;
  for (int64_t step = 10; step < 200; ++step) sent.push_back(small(step));
  int64_t step = 200;
  EXPECT_TRUE(Eventually([&] {
    sent.push_back(small(step++));
    return std::count_if(sent.begin(), sent.end(),
                         [](const auto& payload) { return !payload.expired(); }) <= 2;
  }));
}

TEST_F(FaultsTest, ALivingPeerWritesIntoNobodyElsesSlotsWhenItsLinkEnded) {
  if (OnLibfabric()) GTEST_SKIP() << "a tensor may follow on the link that ends, and go by gRPC";
  if (!OnShm()) GTEST_SKIP() << "peers cannot write any more";
  Make(/*zero_copy=*/false);
  WarmUp();
  memory::Arena& receive_arena = *b().runtime().receive_arena();
  const uint64_t slots = receive_arena.Stats().used_bytes;
  ASSERT_GT(slots, 0u);
  b_->device().BreakAll(Status(Code::kAborted, "broken"));
  ASSERT_TRUE(Eventually([&] { return !a().linked() && !b().linked(); }));
  for (int i = 0; i < 8; ++i) Pass(i);
  // They come back when the writer has ended its part, and not before.
  a_->device().BreakAll(Status(Code::kAborted, "broken"));
  EXPECT_TRUE(Eventually([&] { return receive_arena.Stats().used_bytes == 0; }));
}

TEST_F(FaultsTest, SlotsStayWhileTheirWriterDoesNotKnowOfTheEnd) {
  if (!OnShm() && !OnLibfabric()) GTEST_SKIP() << "peers cannot write any more";
  Make(/*zero_copy=*/false);
  WarmUp();
  memory::Arena& receive_arena = *b().runtime().receive_arena();
  const uint64_t slots = receive_arena.Stats().used_bytes;
  ASSERT_GT(slots, 0u);
  a().Stop();
  b_->device().BreakAll(Status(Code::kAborted, "broken"));
  ASSERT_TRUE(Eventually([&] { return b().endpoint().links().UpTo("/job:a").empty(); }));
  EXPECT_EQ(receive_arena.Stats().used_bytes, slots);
}

// Two connected channels without a protocol.
class ChannelEndTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(fabric::OpenDevice(FabricSettings(), &devices_[i]).ok());
      handlers_[i] = std::make_shared<Recorder>();
      ASSERT_TRUE(devices_[i]->Open(handlers_[i], &channels_[i]).ok());
    }
    ASSERT_TRUE(channels_[0]->Connect(channels_[1]->Address(), fabric::Role::kPassive).ok());
    ASSERT_TRUE(channels_[1]->Connect(channels_[0]->Address(), fabric::Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return handlers_[0]->connected && handlers_[1]->connected; }));
    const size_t length = devices_[0]->RegionGranule();
    ASSERT_TRUE(devices_[0]->Allocate(length, fabric::Access::kRemoteRead, nullptr, &region_).ok());
  }
  template <typename Condition>
  bool PollUntil(Condition condition) {
    return Eventually([&] {
      for (auto& device : devices_) device->Poll();
      return condition();
    });
  }

  std::unique_ptr<fabric::Device> devices_[2];
  std::unique_ptr<fabric::Region> region_;
  std::shared_ptr<Recorder> handlers_[2];
  std::shared_ptr<fabric::Channel> channels_[2];
};

TEST_F(ChannelEndTest, WhatBeginsAfterItIsRefused) {
  channels_[0]->Close(Status(Code::kAborted, "over"));
  ASSERT_TRUE(PollUntil([&] { return handlers_[0]->closed && handlers_[1]->closed; }));
  // Otherwise its end would be waited for, and OnClosed() was the last call.
  EXPECT_EQ(channels_[0]->Read({1, 0, 64}, region_->address(), 1).code(), Code::kUnavailable);
  EXPECT_EQ(channels_[0]->Share(region_->key()).code(), Code::kUnavailable);
}

TEST_F(ChannelEndTest, APeerThatLivesIsNotTakenForDeadBecauseItHadNotReadAll) {
  if (!OnShm()) GTEST_SKIP() << "there Unavailable is all that is said, and it is true";
  ASSERT_TRUE(channels_[0]->Share(region_->key()).ok());
  channels_[1]->Close(Status(Code::kAborted, "over"));
  ASSERT_TRUE(Eventually([&] {
    devices_[1]->Poll();
    return handlers_[1]->closed;
  }));
  ASSERT_TRUE(PollUntil([&] { return handlers_[0]->closed; }));
  EXPECT_EQ(handlers_[0]->reason.code(), Code::kAborted) << handlers_[0]->reason.message();
}

}  // namespace
}  // namespace rdma_transport::testing
