// Timelines: what is kept of transfers, and that keeping it harms nobody.
#include "protocol/trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
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

enum Kind { kSent, kReleased, kArrived, kHandedOver };

struct Row {
  int kind;
  long begin, end;
  unsigned long peer, handle;
  long step;
  unsigned long bytes;
  char mode[16];
  unsigned long key;
};

std::vector<Row> RowsOf(const std::string& json) {
  std::vector<Row> rows;
  size_t at = json.find("\"events\": [") + 10;
  while ((at = json.find('[', at + 1)) != std::string::npos) {
    Row row = {};
    if (std::sscanf(json.c_str() + at, "[%d, %ld, %ld, %lu, %lu, %ld, %lu, \"%15[a-z]\", %lu]",
                    &row.kind, &row.begin, &row.end, &row.peer, &row.handle, &row.step, &row.bytes,
                    row.mode, &row.key) == 9) {
      rows.push_back(row);
    }
  }
  return rows;
}

std::vector<Row> Of(const std::vector<Row>& rows, Kind kind) {
  std::vector<Row> found;
  for (const Row& row : rows) {
    if (row.kind == kind) found.push_back(row);
  }
  return found;
}

class TraceTest : public ProtocolTest {
 protected:
  // Sends, receives and drops a tensor.
  void Transfer(Task& a, Task& b, int step, const std::string& key, size_t length) {
    const std::vector<int64_t> dims = {static_cast<int64_t>(length)};
    ASSERT_TRUE(Send(a, b, Tensor(step, key, Bytes(length, step, &a.arena()), dims)).ok());
    ASSERT_TRUE(Receive(b, a, step, key)->Get().status.ok());
  }
};

TEST_F(TraceTest, BothSidesOfEachTransferAreKept) {
  Task a("task a"), b("task b");
  Transfer(a, b, 1, "before;0:0", 100000);
  int before = 100;
  const uint64_t hits = GlobalCounters().plan.hits.load();
  ASSERT_TRUE(Eventually([&] {
    Transfer(a, b, ++before, "edge;0:0", 100000);
    return GlobalCounters().plan.hits.load() > hits;
  }));
  // Without a free slot, the next tensor would be sent in dynamic mode.
  const auto all_is_back = [&] {
    std::vector<EdgeReport> edges;
    a.endpoint().ReportEdges(&edges);
    uint64_t busy = a.endpoint().Stats()[0].outstanding;
    for (const EdgeReport& edge : edges) busy += edge.busy;
    return busy == 0;
  };
  ASSERT_TRUE(Eventually(all_is_back));
  ASSERT_TRUE(Trace::Start(1000).ok());
  const Nanos began = Now();
  Transfer(a, b, 2, "small;0:0", 100);
  for (int step = 3; step < 8; ++step) {
    Transfer(a, b, step, "edge;0:0", 100000);
    EXPECT_TRUE(Eventually(all_is_back));
  }
  const std::string json = Trace::StopJson();
  const Nanos ended = Now();
  const std::vector<Row> rows = RowsOf(json), sent = Of(rows, kSent), arrived = Of(rows, kArrived);
  ASSERT_EQ(sent.size(), 6u) << json;
  ASSERT_EQ(arrived.size(), 6u) << json;
  std::map<std::string, uint64_t> bytes_by_mode;
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(sent[i].bytes, arrived[i].bytes);
    EXPECT_EQ(sent[i].step, arrived[i].step);
    EXPECT_EQ(sent[i].key, arrived[i].key);
    EXPECT_STREQ(sent[i].mode, arrived[i].mode);
    EXPECT_LE(began, sent[i].begin);
    EXPECT_LE(sent[i].begin, arrived[i].begin);
    EXPECT_LE(arrived[i].end, ended);
    bytes_by_mode[sent[i].mode] += sent[i].bytes;
  }
  EXPECT_EQ(bytes_by_mode["inline"], 100u);
  EXPECT_EQ(bytes_by_mode["static"] + bytes_by_mode["dynamic"], 500000u);
  EXPECT_GT(bytes_by_mode["static"], 0u);
  EXPECT_NE(json.find("\"edge;0:0\""), std::string::npos);
  EXPECT_EQ(json.find("before"), std::string::npos);
  EXPECT_NE(json.find(R"({"local": "task a", "remote": "task b"})"), std::string::npos);
  // Pairs: each arrival is handed over, and what has something to give back is released.
  const std::vector<Row> handed = Of(rows, kHandedOver), released = Of(rows, kReleased);
  ASSERT_EQ(handed.size(), arrived.size());
  for (const Row& row : handed) EXPECT_EQ(row.handle, arrived[&row - handed.data()].handle);
  size_t lent = 0;
  for (const Row& row : sent) lent += row.handle != 0 ? 1 : 0;
  EXPECT_EQ(lent, 5u);
  EXPECT_GE(released.size(), 4u);  // the last one is perhaps just being written
}

TEST_F(TraceTest, WhatDoesNotFitIsCounted) {
  Task a("a"), b("b");
  Transfer(a, b, 100, "k;0:0", 64);  // from here on a send has ended before its tensor is received
  ASSERT_TRUE(Trace::Start(3).ok());
  for (int step = 1; step <= 4; ++step) Transfer(a, b, step, "k;0:0", 64);
  const std::string json = Trace::StopJson();
  EXPECT_EQ(RowsOf(json).size(), 3u);
  EXPECT_NE(json.find("\"dropped\": 6,"), std::string::npos) << json;
}

TEST_F(TraceTest, OneAtATimeAndNothingIsLeftOfTheLast) {
  Task a("a"), b("b");
  Transfer(a, b, 100, "k;0:0", 64);
  ASSERT_TRUE(Trace::Start(100).ok());
  EXPECT_EQ(Trace::Start(100).code(), Code::kFailedPrecondition);
  const std::vector<int64_t> dims = {64};
  ASSERT_TRUE(Send(a, b, Tensor(1, "k;0:0", Bytes(64, 1), dims)).ok());
  ASSERT_TRUE(Eventually([&] { return b.endpoint().unclaimed_tensors() == 1; }));
  EXPECT_EQ(RowsOf(Trace::StopJson()).size(), 2u);
  EXPECT_FALSE(Trace::On());
  ASSERT_TRUE(Trace::Start(100).ok());
  // Its arrival was of the trace before.
  ASSERT_TRUE(Receive(b, a, 1, "k;0:0")->Get().status.ok());
  Transfer(a, b, 2, "k;0:0", 64);
  const std::vector<Row> rows = RowsOf(Trace::StopJson());
  const std::vector<Row> arrived = Of(rows, kArrived);
  ASSERT_EQ(arrived.size(), 1u);
  for (const Row& row : Of(rows, kHandedOver)) {
    EXPECT_TRUE(row.handle == arrived[0].handle || row.handle < arrived[0].handle);
  }
}

TEST_F(TraceTest, ItIsSwitchedWhileTensorsMove) {
  Task a("a"), b("b");
  Transfer(a, b, 1, "first;0:0", 64);
  std::atomic<bool> stop{false};
  std::vector<std::thread> senders;
  for (int i = 0; i < 2; ++i) {
    senders.emplace_back([&, i] {
      const std::string key = "k" + std::to_string(i) + ";0:0";
      for (int step = 2; !stop.load(); ++step) Transfer(a, b, step, key, i == 0 ? 64 : 70000);
    });
  }
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(Trace::Start(200).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LE(RowsOf(Trace::StopJson()).size(), 200u);
  }
  stop.store(true);
  for (std::thread& sender : senders) sender.join();
}

TEST_F(TraceTest, OfALongKeyTheEndIsKept) {
  Task a("a"), b("b");
  ASSERT_TRUE(Trace::Start(100).ok());
  Transfer(a, b, 1, std::string(300, 'x') + ";name;0:0", 64);
  const std::string json = Trace::StopJson();
  EXPECT_NE(json.find("\"" + std::string(103, 'x') + ";name;0:0\""), std::string::npos) << json;
}

TEST_F(TraceTest, PeersAreCountedEachForItself) {
  Task a("a"), b("b"), c("c");
  Transfer(a, b, 1, "k;0:0", 64);
  Transfer(a, c, 1, "k;0:0", 64);
  Transfer(a, c, 2, "large;0:0", 70000);
  Transfer(c, a, 3, "back;0:0", 64);
  const std::vector<PeerStats> peers = a.endpoint().Stats();
  ASSERT_EQ(peers.size(), 2u);
  const auto inline_of = [](const ModeCounter* counters) {
    return counters[static_cast<int>(Mode::kInline)].bytes.load();
  };
  EXPECT_EQ(peers[0].task, "b");
  EXPECT_EQ(peers[0].local, "a");
  EXPECT_EQ(inline_of(peers[0].traffic->sent), 64u);
  EXPECT_EQ(inline_of(peers[1].traffic->sent), 64u);
  EXPECT_EQ(peers[1].traffic->sent[static_cast<int>(Mode::kDynamic)].tensors.load(), 1u);
  EXPECT_EQ(inline_of(peers[1].traffic->received), 64u);
  EXPECT_TRUE(peers[1].linked);
  EXPECT_EQ(peers[1].links, 1u);
  EXPECT_GT(peers[1].linked_at, 1.6e9);
  EXPECT_GT(peers[1].backlog.ring_bytes, 0u);
  EXPECT_EQ(peers[1].last_error, "");
}

TEST_F(TraceTest, WhoOnlyComesHereIsSeenToo) {
  Task b("b");
  EXPECT_TRUE(b.endpoint().Stats().empty());
  {
    Task a("a");
    const std::vector<int64_t> dims = {64};
    ASSERT_TRUE(Send(a, b, Tensor(1, "k;0:0", Bytes(64, 1), dims)).ok());
    ASSERT_TRUE(Eventually([&] { return !b.endpoint().Stats().empty(); }));
    const PeerStats caller = b.endpoint().Stats()[0];
    EXPECT_EQ(caller.task, "a");
    EXPECT_EQ(caller.local, "b");
    EXPECT_TRUE(Eventually([&] { return a.endpoint().Stats()[0].transport == caller.transport; }));
    EXPECT_TRUE(caller.linked);
    EXPECT_EQ(caller.links, 1u);
    EXPECT_GT(caller.linked_at, 1.6e9);
    EXPECT_GT(caller.backlog.ring_bytes, 0u);
    EXPECT_EQ(caller.incarnation, a.endpoint().identity().incarnation);
    // Once a cluster names it, it is that cluster's peer.
    ASSERT_TRUE(Receive(b, a, 1, "k;0:0")->Get().status.ok());
    EXPECT_EQ(b.endpoint().Stats().size(), 1u);
  }
}

TEST_F(TraceTest, WhatAPeerDoesNotTakeIsSeen) {
  Task a("a"), b("b");
  Transfer(a, b, 1, "k;0:0", 64);
  const auto idle = [&] { return a.endpoint().Stats()[0].backlog; };
  EXPECT_TRUE(Eventually([&] { return idle().used_bytes <= idle().ring_bytes / 4; }));
  b.Stop();
  const std::vector<int64_t> dims = {4000};
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(Send(a, b, Tensor(2, "k" + std::to_string(i) + ";0:0", Bytes(4000, 1), dims)).ok());
  }
  const fabric::Backlog backlog = a.endpoint().Stats()[0].backlog;
  EXPECT_GT(backlog.used_bytes, backlog.ring_bytes / 2);
  EXPECT_LE(backlog.used_bytes, backlog.ring_bytes);
  EXPECT_GT(backlog.waiting_bytes, 0u);
  EXPECT_GE(backlog.used_bytes + backlog.waiting_bytes, 400u * 4000);
}

TEST_F(TraceTest, ALostPeerSaysWhyAndCountsItsLinks) {
  Task a("a");
  auto first = std::make_unique<Task>("b");
  Transfer(a, *first, 1, "k;0:0", 64);
  const auto recv = Receive(a, *first, 1, "never");  // silence is noticed while somebody waits
  first.reset();
  ASSERT_TRUE(Eventually([&] { return !a.endpoint().Stats()[0].linked; }));
  PeerStats stats = a.endpoint().Stats()[0];
  EXPECT_TRUE(stats.lost);
  EXPECT_NE(stats.last_error.find("peer b is lost"), std::string::npos) << stats.last_error;
  Task second("b");
  Transfer(a, second, 2, "k;0:0", 64);
  stats = a.endpoint().Stats()[0];
  EXPECT_EQ(stats.links, 2u);
  EXPECT_EQ(stats.traffic->sent[static_cast<int>(Mode::kInline)].tensors.load(), 2u);
}

}  // namespace
}  // namespace rdma_transport
