#include "fabric/host/cpu_list.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace rdma_transport::fabric::host {
namespace {

// Runs on one processor during the test.
class CpuListTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
    while (!CPU_ISSET(own_, &before_)) ++own_;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(own_, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }
  void TearDown() override { sched_setaffinity(0, sizeof(before_), &before_); }
  std::string Text(int offset) const { return std::to_string(own_ + offset); }

  cpu_set_t before_;
  int own_ = 0;
};

TEST_F(CpuListTest, HoldsTheOwnProcessorOrNot) {
  EXPECT_TRUE(MayRunOnAny(Text(0)));
  EXPECT_TRUE(MayRunOnAny("0-" + Text(3)));
  EXPECT_TRUE(MayRunOnAny(Text(5) + "-" + Text(9) + "," + Text(0)));
  EXPECT_FALSE(MayRunOnAny(Text(1)));
  EXPECT_FALSE(MayRunOnAny(Text(1) + "-" + Text(4) + "," + Text(8)));
}

TEST_F(CpuListTest, WhatCannotBeReadExcludesNothing) {
  for (const std::string& list :
       {std::string(), std::string("all"), Text(1) + "-", Text(4) + "-" + Text(1), Text(1) + ",",
        Text(1) + ";" + Text(2), std::string("1-99999"), std::string("99999999999999")}) {
    EXPECT_TRUE(MayRunOnAny(list)) << list;
  }
}

TEST_F(CpuListTest, ReadsTheFileOfADevice) {
  std::string folder = std::filesystem::temp_directory_path() / "cpu_list_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  EXPECT_TRUE(MayRunNear(folder)) << "no such file";
  std::ofstream(folder + "/local_cpulist") << Text(1) << "\n";
  EXPECT_FALSE(MayRunNear(folder));
  std::ofstream(folder + "/local_cpulist") << Text(0) << "-" << Text(1) << "\n";
  EXPECT_TRUE(MayRunNear(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
