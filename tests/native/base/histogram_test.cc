#include "base/histogram.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

namespace rdma_transport {
namespace {

Histogram::Counts Read(const Histogram& histogram) {
  Histogram::Counts counts;
  histogram.AddTo(&counts);
  return counts;
}

uint64_t CountOf(const Histogram::Counts& counts) {
  return std::accumulate(counts.buckets.begin(), counts.buckets.end(), uint64_t{0});
}

TEST(Histogram, ABoundBelongsToItsBucket) {
  for (size_t i = 0; i < Histogram::kBounds.size(); ++i) {
    Histogram histogram;
    histogram.Add(Histogram::kBounds[i]);
    histogram.Add(Histogram::kBounds[i] + 1);
    const Histogram::Counts counts = Read(histogram);
    EXPECT_EQ(counts.buckets[i], 1u);
    EXPECT_EQ(counts.buckets[i + 1], 1u);
    EXPECT_EQ(counts.sum, 2 * static_cast<uint64_t>(Histogram::kBounds[i]) + 1);
  }
}

TEST(Histogram, ExtremeDurationsAreInTheFirstAndTheLastBucket) {
  Histogram histogram;
  histogram.Add(-1);
  histogram.Add(0);
  histogram.Add(3600 * kSecond);
  const Histogram::Counts counts = Read(histogram);
  EXPECT_EQ(counts.buckets.front(), 2u);
  EXPECT_EQ(counts.buckets.back(), 1u);
  EXPECT_EQ(counts.sum, static_cast<uint64_t>(3600 * kSecond));
}

TEST(Histogram, SeveralAreAddedUp) {
  Histogram one, other;
  one.Add(kMicrosecond);
  other.Add(kMicrosecond);
  other.Add(kSecond);
  Histogram::Counts counts;
  one.AddTo(&counts);
  other.AddTo(&counts);
  EXPECT_EQ(counts.buckets.front(), 2u);
  EXPECT_EQ(CountOf(counts), 3u);
  EXPECT_EQ(counts.sum, static_cast<uint64_t>(kSecond + 2 * kMicrosecond));
}

TEST(Histogram, ThreadsLoseNoDuration) {
  constexpr int kThreads = 4, kTimes = 20000;
  Histogram histogram;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&histogram, i] {
      for (int n = 0; n < kTimes; ++n) histogram.Add((i + 1) * kMillisecond);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Histogram::Counts counts = Read(histogram);
  EXPECT_EQ(CountOf(counts), uint64_t{kThreads * kTimes});
  EXPECT_EQ(counts.sum, uint64_t{kTimes} * (1 + 2 + 3 + 4) * kMillisecond);
}

TEST(Histogram, JsonHasCumulativeCountsBySeconds) {
  Histogram histogram;
  histogram.Add(kMicrosecond);
  histogram.Add(1500 * kMicrosecond);
  histogram.Add(12 * kSecond);
  const std::string json = Read(histogram).ToJson();
  EXPECT_EQ(json.find(R"({"buckets": {"0.000001": 1, "0.000002": 1, )"), 0u) << json;
  EXPECT_NE(json.find(R"("0.001": 1, "0.002": 2, )"), json.npos) << json;
  EXPECT_NE(json.find(R"("10": 2, "+Inf": 3}, "count": 3, "sum": 12.001501})"), json.npos) << json;
}

}  // namespace
}  // namespace rdma_transport
