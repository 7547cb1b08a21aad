// What becomes of tensors over a libfabric provider that loses, refuses and fails operations: each
// that arrives is right, the others are reported, and links recover.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "libfabric_pair.h"
#include "task.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::Eventually;
using testing::Faulty;
using testing::FaultyCounters;
using testing::Payload;
using testing::SetFaulty;
using testing::Task;

struct Kind {
  const char* name;
  const char* provider;
  bool static_edges;
  size_t length;
};

class LibfabricLinkTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    Faulty().reset();
    SetFaulty(GetParam().provider);
  }
  // The tasks are gone by now.
  void TearDown() override {
    const FaultyLibfabricCounters left = FaultyCounters();
    EXPECT_EQ(left.endpoints + left.regions + left.domains + left.fabrics, 0u);
    Faulty().reset();
  }

  static Settings MakeSettings() {
    Settings settings = testing::OnFaulty();
    settings.arena_size = uint64_t{64} << 20;
    settings.peer_timeout = 1 * kSecond;
    settings.connect_timeout = 10 * kSecond;
    settings.static_edges = GetParam().static_edges;
    return settings;
  }

  // Returns whether a tensor arrived by the fabric; then it must be as it was sent. What is not
  // delivered ends its step, in either task.
  bool Pass(Task& from, Task& to) {
    const int64_t step = ++step_;
    const size_t length = GetParam().length;
    auto catcher = std::make_shared<Catcher>();
    to.endpoint().Receive(to.PeerTo(from), step, kKey, catcher, Task::CallTo(from));
    auto payload = std::make_shared<Payload>(length, static_cast<int>(step), &from.arena());
    const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
    testing::CountingGrpc fallback(&grpc_sends_);
    const Status sent = from.PeerTo(to)->Send(testing::Tensor(step, kKey, payload, dims),
                                              Task::CallTo(to), &fallback);
    EXPECT_TRUE(Eventually([&] {
      return catcher->deliveries() + catcher->grpc_asks() + grpc_sends_.exchange(0) > 0 ||
             !sent.ok();
    })) << "neither delivered nor reported";
    bool passed = false;
    if (catcher->Claim()) {
      to.endpoint().RemoveRecv(step, kKey, catcher.get());
    } else {
      const Delivery delivery = catcher->Get();
      passed = delivery.status.ok();
      EXPECT_TRUE(!passed || Payload::Matches(delivery.data, length, static_cast<int>(step)));
    }
    from.endpoint().EndStep(step);
    to.endpoint().EndStep(step);
    return passed;
  }

  static constexpr char kKey[] = "/job:a;1;/job:b;edge;0:0";
  std::atomic<int> grpc_sends_{0};
  int64_t step_ = 0;
};

TEST_P(LibfabricLinkTest, NoTensorIsWrongWhateverTheProviderDoes) {
  Task a("/job:a", MakeSettings()), b("/job:b", MakeSettings());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Pass(a, b));
  for (const char* kind : {"write", "send", "read"}) {
    for (const bool lost : {true, false}) {
      if (lost && std::string(kind) == "read") continue;
      SCOPED_TRACE(std::string(kind) + (lost ? " lost" : " failed"));
      ASSERT_EQ(lost ? Faulty().lose_next(kind) : Faulty().fail_next(kind), 0);
      for (int i = 0; i < 5; ++i) Pass(a, b);
      ASSERT_TRUE(Eventually([&] { return Pass(a, b); })) << "the link did not recover";
      for (int i = 0; i < 5; ++i) Pass(b, a);
    }
  }
  SetFaulty("eagain=50");
  for (int i = 0; i < 20; ++i) Pass(a, b);
  SetFaulty("eagain=0");
  ASSERT_TRUE(Eventually([&] { return Pass(a, b) && Pass(b, a); }));
  for (Task* task : {&a, &b}) {
    EXPECT_TRUE(Eventually([&] { return task->arena().Stats().used_bytes == 0; }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , LibfabricLinkTest,
    ::testing::Values(Kind{"Static", testing::kUnorderedProvider, true, 40'000},
                      Kind{"Dynamic", testing::kUnorderedProvider, false, 40'000},
                      Kind{"StaticWithoutRemoteData", testing::kCxi, true, 40'000},
                      Kind{"InlineOverTcp", "order=provider", false, 100}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rdma_transport
