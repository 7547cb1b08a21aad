// The double of libfabric: operations and completions that overtake or come late, and sleeping
// clients.

#include <poll.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "faulty_libfabric/harness.h"

namespace faulty_libfabric::testing {
namespace {

using std::chrono::milliseconds;

TEST_F(FaultyLibfabricTest, UnorderedWritesOvertake) {
  Set("order", "none");
  const Info wants = Hints();
  wants->tx_attr->msg_order = FI_ORDER_SAS;
  EXPECT_EQ(Error(wants), -FI_ENODATA);
  const Info info = Find();
  EXPECT_EQ(info->tx_attr->msg_order | info->tx_attr->comp_order | info->rx_attr->msg_order, 0U);
  auto pair = Connected();
  const std::vector<uint64_t> data = Arrivals(*pair, 200);
  EXPECT_FALSE(std::is_sorted(data.begin(), data.end()));
  const FaultyLibfabricCounters counters = Counters();
  EXPECT_GT(counters.delayed_writes, 0U);
  EXPECT_GT(counters.overtaken_writes, 0U);
  // Delivery was asked for.
  EXPECT_EQ(counters.early_completions, 0U);
}

TEST_F(FaultyLibfabricTest, UnorderedMessagesOvertake) {
  Set("order", "none");
  auto pair = Connected();
  for (uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(pair->Try([&] { return pair->Receive(); }), 0);
    ASSERT_EQ(pair->Try([&] { return pair->Send(i); }), 0);
  }
  ASSERT_TRUE(Eventually([&] {
    pair->Progress();
    return pair->b.Done(FI_RECV) == 100 && pair->a.Done(FI_SEND) == 100;
  }));
  std::vector<uint64_t> data = pair->b.DataOf(FI_RECV);
  EXPECT_FALSE(std::is_sorted(data.begin(), data.end()));
  std::sort(data.begin(), data.end());
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(data[i], i);
  EXPECT_GT(Counters().overtaken_sends, 0U);
  EXPECT_GT(Counters().early_completions, 0U);
}

TEST_F(FaultyLibfabricTest, HeldWritesCompleteEarlyUnlessDeliveryIsAskedFor) {
  auto pair = Connected();
  Pair& p = *pair;
  L().faulty_libfabric_hold_writes(1);
  p.a.memory[0] = 'x';
  p.a.memory[1] = 'y';
  ASSERT_EQ(p.Write(0, 1, 0), 0);
  int delivered = 0;
  ASSERT_EQ(p.Write(1, 1, 1, 0, FI_DELIVERY_COMPLETE, &delivered), 0);
  ASSERT_EQ(p.Receive(), 0);
  ASSERT_EQ(p.Send(1), 0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.b.Done(FI_RECV) == 1; }));
  for (int i = 0; i < 100; ++i) p.Progress();
  EXPECT_EQ(p.a.Done(FI_WRITE), 1U);
  EXPECT_EQ(p.b.memory[0], 0);
  EXPECT_EQ(p.b.memory[1], 0);
  // The client may use its buffer again.
  p.a.memory[0] = 'z';
  L().faulty_libfabric_hold_writes(0);
  ASSERT_TRUE(Eventually([&] { return p.Progress(), p.a.Done(FI_WRITE) == 2; }));
  EXPECT_EQ(p.a.done.back().op_context, &delivered);
  EXPECT_EQ(p.b.memory[0], 'x');
  EXPECT_EQ(p.b.memory[1], 'y');
  EXPECT_EQ(Counters().early_completions, 1U);
  EXPECT_EQ(Counters().overtaken_writes, 2U);
}

// Sleeps on the queue until it has a completion. How often it woke for nothing.
int SleepUntilDone(End& end) {
  int wait = -1;
  EXPECT_EQ(fi_control(&end.cq->fid, FI_GETWAIT, &wait), 0);
  fid* waited = &end.cq->fid;
  for (int woken = 0;; ++woken) {
    end.Progress();
    if (!end.done.empty()) return woken;
    if (fi_trywait(end.fabric, &waited, 1) != 0) continue;
    pollfd wanted = {wait, POLLIN, 0};
    if (poll(&wanted, 1, 10000) != 1) {
      ADD_FAILURE() << "nothing woke the client";
      return woken;
    }
  }
}

TEST_F(FaultyLibfabricTest, LateCompletionsWakeSleepers) {
  auto pair = Connected();
  Set("late", "20000");
  for (int i = 0; i < 10; ++i) {
    pair->a.done.clear();
    ASSERT_EQ(pair->Try([&] { return pair->Write(0, 8, 0); }), 0);
    EXPECT_LT(SleepUntilDone(pair->a), 10);
  }
  EXPECT_GE(Counters().late_completions, 10U);
  EXPECT_EQ(Counters().reordered_completions, 0U);
  EXPECT_GT(Counters().trywaits, 0U);
}

TEST_F(FaultyLibfabricTest, WaitingWritesWakeSleepers) {
  Set("order", "none");
  Set("delay_us", "20000");
  auto pair = Connected();
  for (int i = 0; i < 20; ++i) {
    pair->a.done.clear();
    ASSERT_EQ(pair->Try([&] { return pair->Write(0, 8, 0); }), 0);
    EXPECT_LT(SleepUntilDone(pair->a), 10);
  }
  EXPECT_GT(Counters().delayed_writes, 0U);
}

TEST_F(FaultyLibfabricTest, DescriptorMayBeStuck) {
  for (const char* wait : {"fd", "stuck"}) {
    Set("wait", wait);
    auto pair = Connected();
    int descriptor = -1;
    ASSERT_EQ(fi_control(&pair->a.cq->fid, FI_GETWAIT, &descriptor), 0);
    fid* waited = &pair->a.cq->fid;
    ASSERT_TRUE(Eventually([&] { return fi_trywait(pair->a.fabric, &waited, 1) == 0; }));
    pollfd wanted = {descriptor, POLLIN, 0};
    // Later releases than 1.18 are never stuck.
    const bool stuck = poll(&wanted, 1, 0) == 1;
    if (std::strcmp(wait, "fd") == 0) {
      EXPECT_FALSE(stuck);
    } else if (L().fi_version() < FI_VERSION(1, 18)) {
      EXPECT_TRUE(stuck);
    }
  }
}

TEST_F(FaultyLibfabricTest, PeerWakesSleeper) {
  auto pair = Connected();
  ASSERT_EQ(pair->Receive(), 0);
  std::thread sleeper([&] { SleepUntilDone(pair->b); });
  std::this_thread::sleep_for(milliseconds(20));
  ASSERT_EQ(pair->Send(5), 0);
  ASSERT_TRUE(Eventually([&] { return pair->a.Progress(), pair->a.Done(FI_SEND) == 1; }));
  sleeper.join();
  EXPECT_EQ(pair->b.DataOf(FI_RECV), std::vector<uint64_t>{5});
}

TEST_F(FaultyLibfabricTest, ServesManyThreads) {
  Set("order", "none");
  Set("late", "300");
  Set("eagain", "10");
  Set("delay_us", "300");
  auto pair = Connected();
  constexpr size_t kThreads = 3;
  constexpr size_t kWrites = 200;
  std::iota(pair->a.memory.begin(), pair->a.memory.end(), 0);
  std::vector<std::thread> writers;
  for (size_t t = 0; t < kThreads; ++t) {
    writers.emplace_back([&pair, t] {
      for (size_t i = 0; i < kWrites; ++i) {
        const size_t at = t * 1000 + i;
        while (pair->Write(at, 1, at, at, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE) != 0) {
          std::this_thread::yield();
        }
      }
    });
  }
  std::thread peer([&] {
    EXPECT_TRUE(Eventually([&] {
      pair->b.Progress();
      return pair->b.Done(FI_REMOTE_WRITE) == kThreads * kWrites;
    }));
    // Serves until the acknowledgments are out.
    for (int i = 0; i < 1000; ++i) pair->b.Progress();
  });
  int descriptor = -1;
  ASSERT_EQ(fi_control(&pair->a.cq->fid, FI_GETWAIT, &descriptor), 0);
  fid* waited = &pair->a.cq->fid;
  EXPECT_TRUE(Eventually([&] {
    pair->a.Progress();
    pollfd wanted = {descriptor, POLLIN, 0};
    if (fi_trywait(pair->a.fabric, &waited, 1) == 0) poll(&wanted, 1, 100);
    return pair->a.Done(FI_WRITE) == kThreads * kWrites;
  }));
  for (std::thread& writer : writers) writer.join();
  peer.join();
  for (size_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(
        std::memcmp(pair->a.memory.data() + t * 1000, pair->b.memory.data() + t * 1000, kWrites),
        0);
  }
}

TEST_F(FaultyLibfabricTest, LateCompletionsAreUnorderedIfTheProviderIs) {
  Set("order", "none");
  Set("late", "5000");
  auto pair = Connected();
  EXPECT_EQ(Arrivals(*pair, 100).size(), 100U);
  EXPECT_GT(Counters().reordered_completions, 0U);
}

TEST_F(FaultyLibfabricTest, MayHaveNoWaitDescriptor) {
  for (const char* wait : {"none", "remote"}) {
    Set("wait", wait);
    auto pair = std::make_unique<Pair>(Find(), FI_WAIT_NONE);
    pair->Connect();
    fi_cq_attr attributes = {};
    attributes.wait_obj = FI_WAIT_FD;
    fid_cq* cq = nullptr;
    EXPECT_EQ(fi_cq_open(pair->a.domain, &attributes, &cq, nullptr), -FI_ENOSYS);
  }
  Info info = Find();
  info->caps = (info->caps & ~FI_LOCAL_COMM) | FI_REMOTE_COMM;
  auto pair = std::make_unique<Pair>(std::move(info));
  pair->Connect();
}

}  // namespace
}  // namespace faulty_libfabric::testing
