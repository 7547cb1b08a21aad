// Lines that somebody outside can cause are few, and those left out are counted.

#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace rdma_transport {
namespace {

std::vector<std::string> g_lines;
void Collect(LogLevel, const std::string& line) { g_lines.push_back(line); }

TEST(LogLimiterTest, TheFirstLinesAreWrittenAndTheOthersCounted) {
  SetLogSink(&Collect);
  g_lines.clear();
  LogLimiter limiter(LogLevel::kWarning, /*most=*/3, /*interval=*/10 * kSecond);
  for (int i = 0; i < 400; ++i) limiter.LogAt(kSecond + i, "line " + std::to_string(i));
  ASSERT_EQ(g_lines.size(), 3u);
  EXPECT_EQ(g_lines[0], "rdma: line 0");
  EXPECT_NE(g_lines[2].find("line 2"), std::string::npos);
  limiter.LogAt(12 * kSecond, "later");
  ASSERT_EQ(g_lines.size(), 5u);
  EXPECT_NE(g_lines[3].find("397"), std::string::npos) << g_lines[3];
  EXPECT_EQ(g_lines[4], "rdma: later");
  limiter.LogAt(30 * kSecond, "much later");
  EXPECT_EQ(g_lines.size(), 6u) << "nothing was left out";
  SetLogSink(nullptr);
}

}  // namespace
}  // namespace rdma_transport
