#include "fabric/libfabric/transfers.h"

#include <gtest/gtest.h>

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint64_t kKey = 7;
constexpr uint64_t kLength = uint64_t{8} << 20;
constexpr uint64_t kChunk = uint64_t{3} << 20;

class TransfersTest : public ::testing::Test {
 protected:
  void SetUp() override { Learn(/*writable=*/true); }
  void Learn(bool writable) {
    RegionRecord region = {};
    region.key = kKey;
    region.length = kLength;
    region.writable = writable ? 1 : 0;
    ASSERT_TRUE(transfers_.Learn(region).ok());
  }
  Status Begin(bool write, uint64_t cookie) {
    return transfers_.Begin(write, {kKey, 0, kLength}, nullptr, nullptr, cookie, kChunk);
  }
  Transfers transfers_;
};

TEST_F(TransfersTest, ATransferEndsWithItsLastPiece) {
  ASSERT_TRUE(Begin(/*write=*/false, 1).ok());
  uint64_t bytes = 0;
  while (transfers_.FrontRead() != nullptr) {
    EXPECT_LE(transfers_.FrontRead()->length, kChunk);
    bytes += transfers_.FrontRead()->length;
    transfers_.PopRead();
    EXPECT_TRUE(transfers_.TakeEnded().empty());
    transfers_.OnEnded(1, 0);
  }
  EXPECT_EQ(bytes, kLength);
  ASSERT_EQ(transfers_.TakeEnded().size(), 1U);
}

TEST_F(TransfersTest, WritesKeepTheirOrderAndPassReads) {
  ASSERT_TRUE(Begin(/*write=*/false, 1).ok());
  ASSERT_TRUE(Begin(/*write=*/true, 2).ok());
  ASSERT_TRUE(Begin(/*write=*/true, 3).ok());
  EXPECT_EQ(transfers_.begun(), 6U);
  for (const uint64_t transfer : {2, 2, 2, 3, 3, 3}) {
    ASSERT_NE(transfers_.FrontWrite(), nullptr);
    EXPECT_EQ(transfers_.FrontWrite()->transfer, transfer);
    transfers_.PopWrite();
  }
  EXPECT_EQ(transfers_.FrontWrite(), nullptr);
  EXPECT_EQ(transfers_.started(), transfers_.begun());
  // Whatever the order in which they end.
  for (const uint64_t number : {2, 1}) transfers_.OnEnded(2, number);
  EXPECT_EQ(transfers_.first_unfinished(), 3U);
  for (const uint64_t number : {6, 4, 5, 3}) transfers_.OnEnded(number > 3 ? 3 : 2, number);
  EXPECT_EQ(transfers_.first_unfinished(), 7U);
  const auto ended = transfers_.TakeEnded();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].cookie, 3U);
}

TEST_F(TransfersTest, WhatAnOperationWouldReportIsKnownBefore) {
  for (const auto access : {Access::kRemoteRead, Access::kRemoteReadWrite}) {
    EXPECT_TRUE(transfers_.Check({kKey, 0, kLength}, access).ok());
    EXPECT_EQ(transfers_.Check({kKey, 1, kLength}, access).code(), Code::kInvalidArgument);
    EXPECT_EQ(transfers_.Check({kKey + 1, 0, 1}, access).code(), Code::kInvalidArgument);
  }
  Learn(/*writable=*/false);
  EXPECT_TRUE(transfers_.Check({kKey, 0, kLength}, Access::kRemoteRead).ok());
  EXPECT_EQ(transfers_.Check({kKey, 0, kLength}, Access::kRemoteReadWrite).code(),
            Code::kPermissionDenied);
  EXPECT_EQ(Begin(/*write=*/true, 1).code(), Code::kPermissionDenied);
  EXPECT_TRUE(transfers_.TakeEnded().empty());
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
