#include "protocol/counters.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

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

}  // namespace
}  // namespace rdma_transport
