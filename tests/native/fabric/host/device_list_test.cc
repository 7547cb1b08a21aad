#include "fabric/host/device_list.h"

#include <gtest/gtest.h>

#include <string>

namespace rdma_transport::fabric::host {
namespace {

Status Parse(const std::string& text, DeviceList* list) {
  return ParseDeviceList("RDMA_TRANSPORT_DEVICES", text, "names such as mlx5_0:1,mlx5_1", list);
}

TEST(DeviceList, NamesPortsAndPrefixes) {
  DeviceList list;
  ASSERT_TRUE(Parse("mlx5_1:2, mlx5_0", &list).ok());
  EXPECT_EQ(list.Place("mlx5_1", 2), 0);
  EXPECT_EQ(list.Place("mlx5_1", 1), -1);
  EXPECT_EQ(list.Place("mlx5_10", 2), 0) << "names are prefixes";
  EXPECT_EQ(list.Place("mlx5_0", 7), 1);
  EXPECT_EQ(list.Place("bnxt_re0", 1), -1);
  EXPECT_TRUE(list.MayUse("mlx5_1"));
  EXPECT_FALSE(list.MayUse("bnxt_re0"));
}

TEST(DeviceList, ExactNames) {
  DeviceList list;
  ASSERT_TRUE(Parse("=mlx5_1", &list).ok());
  EXPECT_EQ(list.Place("mlx5_1", 1), 0);
  EXPECT_EQ(list.Place("mlx5_10", 1), -1);
}

TEST(DeviceList, LeavesOut) {
  DeviceList list;
  ASSERT_TRUE(Parse("^mlx5_1:2,bnxt", &list).ok());
  EXPECT_EQ(list.Place("mlx5_1", 2), -1);
  EXPECT_EQ(list.Place("mlx5_1", 1), 0);
  EXPECT_EQ(list.Place("bnxt_re0", 1), -1);
  EXPECT_EQ(list.Place("mlx5_0", 1), 0);
  EXPECT_TRUE(list.MayUse("mlx5_1")) << "only one port of it is left out";
  EXPECT_FALSE(list.MayUse("bnxt_re0"));
  ASSERT_TRUE(Parse("^=mlx5_1", &list).ok());
  EXPECT_FALSE(list.MayUse("mlx5_1"));
  EXPECT_TRUE(list.MayUse("mlx5_10"));
}

TEST(DeviceList, NothingIsAll) {
  for (const char* text : {"", "  "}) {
    DeviceList list;
    ASSERT_TRUE(Parse(text, &list).ok());
    EXPECT_EQ(list.Place("mlx5_0", 1), 0);
    EXPECT_TRUE(list.MayUse("mlx5_0"));
  }
}

TEST(DeviceList, WhatMakesNoSenseIsRefusedWithAnExample) {
  for (const char* text : {"^", "=", "=^mlx5_0", "mlx5_0,", ",mlx5_0", "mlx5_0,,mlx5_1", ":1",
                           "mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:1:2", "mlx5_0:x",
                           "mlx5_0:-1", "mlx5_0,^mlx5_1", "mlx5_0,=mlx5_1", "mlx5_0 mlx5_1"}) {
    DeviceList list;
    const Status status = Parse(text, &list);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    const std::string start = std::string("RDMA_TRANSPORT_DEVICES='") + text + "'";
    EXPECT_EQ(status.message().find(start), 0u) << status.message();
    EXPECT_NE(status.message().find("mlx5_0:1,mlx5_1"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::host
