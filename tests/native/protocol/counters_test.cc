#include "protocol/counters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "protocol/counter_table.h"

namespace rdma_transport {
namespace {

TEST(NamedCounter, NumbersDoNotMakeANameAnother) {
  NamedCounter counter;
  counter.Add("no memory for 4096 bytes at 10.7.0.1:4242 of mlx5_0:1");
  counter.Add("no memory for 1 bytes at 10.7.0.12:80 of mlx5_0:1");
  counter.Add("a string tensor");
  const std::map<std::string, uint64_t> expected = {
      {"no memory for N bytes at N.N.N.N:N of mlx5_0:N", 2}, {"a string tensor", 1}};
  EXPECT_EQ(counter.Get(), expected);
}

TEST(NamedCounter, HasABoundedNumberOfBoundedNames) {
  NamedCounter counter;
  std::string name;
  for (int i = 0; i < 1000; ++i) counter.Add(name += 'x');
  const std::map<std::string, uint64_t> counts = counter.Get();
  EXPECT_EQ(counts.size(), NamedCounter::kMaxNames + 1);
  uint64_t sum = 0;
  for (const auto& [each, count] : counts) {
    EXPECT_LE(each.size(), NamedCounter::kLongestName);
    sum += count;
  }
  EXPECT_EQ(sum, 1000u);
  EXPECT_GT(counts.at(NamedCounter::kOther), 0u);
}

std::string Text(const JsonTree& tree) {
  Json json('{');
  tree.AddTo(&json);
  return json.End();
}

TEST(JsonTree, NestsValuesByPathInOrder) {
  JsonTree tree;
  tree.At("b.y").Set("1");
  tree.At("a");
  tree.At("b").Field("x.z").Set("2");
  tree.At("b.y").Set("3");
  EXPECT_EQ(Text(tree), R"({"b": {"y": 3, "x.z": 2}, "a": {}})");
}

TEST(CounterTable, PeersHaveTheirTrafficAndTheSlotsOfTheirEdges) {
  Traffic traffic("/a", "/b");
  traffic.Sent(Mode::kInline).Add(7);
  PeerStats peer;
  peer.task = "/b";
  peer.traffic = &traffic;
  std::vector<EdgeReport> edges(3);
  edges[0].peer = edges[2].peer = "/b";
  edges[1].peer = "/c";
  for (EdgeReport& edge : edges) edge.slots = 2;
  JsonTree json;
  AddCounters({peer, edges}, &json);
  const std::string text = Text(json);
  EXPECT_NE(text.find(R"("inline": {"tensors": 1, "bytes": 7})"), text.npos) << text;
  EXPECT_NE(text.find(R"("slots": {"agreed": 4, "busy": 0})"), text.npos) << text;
}

TEST(CounterTable, ProcessesHaveNamedCountersAndStagedBytesBySite) {
  GlobalCounters().errors.Add("a.dotted error");
  ProcessCounts process;
  process.edges.resize(3);
  process.edges[0].sites = process.edges[1].sites = "MatMul";
  process.edges[0].staged_bytes = 3;
  process.edges[1].staged_bytes = 4;
  JsonTree json;
  AddCounters(process, &json);
  const std::string text = Text(json);
  EXPECT_NE(text.find(R"("errors": {"a.dotted error": 1})"), text.npos) << text;
  EXPECT_NE(text.find(R"("staged_bytes_by_site": {"MatMul": 7})"), text.npos) << text;
  EXPECT_NE(text.find(R"("fallback_reasons": {})"), text.npos) << text;
}

}  // namespace
}  // namespace rdma_transport
