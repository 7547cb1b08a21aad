// The limits of control groups, in a directory that stands for the root of a host.
#include "fabric/host/control_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace rdma_transport::fabric::host {
namespace {

constexpr size_t kNone = std::numeric_limits<size_t>::max();

class ControlGroupTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "control_group_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  size_t Limit() const { return ControlGroupMemory(root_).limit; }
  size_t Available() const { return ControlGroupMemory(root_).available; }

  std::string root_;
};

TEST_F(ControlGroupTest, NothingIsLimitedWhereNothingIsSaid) {
  EXPECT_EQ(Limit(), kNone);
  Write("/proc/self/cgroup", "0::/user.slice/job\n\n1:name=systemd:/\nnonsense");
  Write("/sys/fs/cgroup/user.slice/job/memory.max", "max");
  EXPECT_EQ(Limit(), kNone);
  EXPECT_EQ(Available(), kNone);
}

TEST_F(ControlGroupTest, TheSmallestLimitOnTheWayUpCounts) {
  Write("/proc/self/cgroup", "0::/kube/pod/container");
  Write("/sys/fs/cgroup/kube/pod/container/memory.max", "9000");
  Write("/sys/fs/cgroup/kube/pod/container/memory.current", "1000");
  EXPECT_EQ(Limit(), 9000u);
  EXPECT_EQ(Available(), 8000u);
  Write("/sys/fs/cgroup/kube/pod/memory.max", "5000");
  Write("/sys/fs/cgroup/kube/pod/memory.current", "4500");
  EXPECT_EQ(Limit(), 5000u);
  EXPECT_EQ(Available(), 500u);
  Write("/sys/fs/cgroup/memory.max", "4000");
  EXPECT_EQ(Limit(), 4000u);
}

// The kernel does not refuse what exceeds it, but makes the group wait, for seconds at a time.
TEST_F(ControlGroupTest, WhatWouldSlowTheGroupDownIsALimit) {
  Write("/proc/self/cgroup", "0::/job");
  Write("/sys/fs/cgroup/job/memory.max", "max");
  Write("/sys/fs/cgroup/job/memory.high", "6000");
  Write("/sys/fs/cgroup/job/memory.current", "1000");
  EXPECT_EQ(Limit(), 6000u);
  EXPECT_EQ(Available(), 5000u);
  Write("/sys/fs/cgroup/job/memory.high", "max");
  EXPECT_EQ(Limit(), kNone);
}

TEST_F(ControlGroupTest, TheCacheOfFilesIsNotInTheWay) {
  Write("/proc/self/cgroup", "0::/");
  Write("/sys/fs/cgroup/memory.max", "9000");
  Write("/sys/fs/cgroup/memory.current", "8900");
  Write("/sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 6000\nactive_file 10");
  EXPECT_EQ(Available(), 6100u);
}

TEST_F(ControlGroupTest, TheFirstVersionHasADirectoryOfItsOwn) {
  Write("/proc/self/cgroup", "5:cpu,memory:/docker/abc\n2:memoryless:/docker/abc\n0::/");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "7000");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "9000");
  EXPECT_EQ(Limit(), 7000u);
  EXPECT_EQ(Available(), 0u);
}

// In a container without a namespace of its own for them, the path is the host's.
TEST_F(ControlGroupTest, APathThatIsNotThereLeavesWhatIs) {
  Write("/proc/self/cgroup", "4:memory:/docker/abc");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "6000");
  EXPECT_EQ(Limit(), 6000u);
}

}  // namespace
}  // namespace rdma_transport::fabric::host
