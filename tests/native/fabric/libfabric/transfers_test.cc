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
    ASSERT_TRUE(transfers_.AddRegion(region).ok());
  }
  Status Begin(bool write, uint64_t cookie) {
    return transfers_.Begin(write, {kKey, 0, kLength}, nullptr, nullptr, cookie, kChunk);
  }
  Transfers transfers_;
};

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

TEST(LibfabricTransfersTest, NothingOutsideOfAnnouncedRegionsIsAccessed) {
  Transfers transfers;
  ASSERT_TRUE(transfers.AddRegion({1, 1000, 0, 5, 1}).ok());
  ASSERT_TRUE(transfers.AddRegion({2, ~uint64_t{0}, ~uint64_t{0} - 10, 5, 0}).ok());
  char local[16];
  const auto begin = [&](bool write, const RemoteSpan& span) {
    return transfers.Begin(write, span, local, nullptr, 1, 4096).code();
  };
  EXPECT_EQ(begin(true, {1, 0, 1001}), Code::kInvalidArgument);
  EXPECT_EQ(begin(true, {1, 1001, 0}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {1, 999, ~uint64_t{0}}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {1, ~uint64_t{0}, 2}), Code::kInvalidArgument);
  EXPECT_EQ(begin(false, {3, 0, 1}), Code::kInvalidArgument);
  EXPECT_EQ(begin(true, {2, 0, 1}), Code::kPermissionDenied);
  EXPECT_EQ(transfers.FrontWrite(), nullptr);
  EXPECT_EQ(transfers.FrontRead(), nullptr);
  EXPECT_EQ(begin(true, {1, 990, 10}), Code::kOk);
  EXPECT_EQ(begin(false, {2, 100, 16}), Code::kOk);
  const uint64_t key = 1;
  EXPECT_EQ(transfers.RemoveRegion("7 bytes").code(), Code::kDataLoss);
  EXPECT_TRUE(transfers.RemoveRegion({reinterpret_cast<const char*>(&key), sizeof(key)}).ok());
  EXPECT_EQ(begin(true, {1, 990, 10}), Code::kInvalidArgument);
}

TEST(LibfabricTransfersTest, APeerAnnouncesNotTooManyRegions) {
  Transfers transfers;
  uint64_t key = 0;
  while (transfers.AddRegion({++key, 1, 0, 0, 0}).ok()) ASSERT_LT(key, 1u << 20);
  EXPECT_EQ(key, Transfers::kMaxRegions + 1);
  EXPECT_TRUE(transfers.AddRegion({1, 2, 0, 0, 0}).ok()) << "it is known already";
}

TEST(LibfabricTransfersTest, AnOperationEndsWithItsLastPiece) {
  Transfers transfers;
  ASSERT_TRUE(transfers.AddRegion({1, 1000, 50, 5, 1}).ok());
  char local[1000];
  ASSERT_TRUE(transfers.Begin(true, {1, 100, 250}, local, nullptr, 77, 100).ok());
  std::vector<Piece> pieces;
  while (transfers.FrontWrite() != nullptr) {
    pieces.push_back(*transfers.FrontWrite());
    transfers.PopWrite();
  }
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(pieces[2].address, 350u);
  EXPECT_EQ(pieces[2].length, 50u);
  EXPECT_EQ(pieces[2].local, local + 200);
  EXPECT_EQ(transfers.first_unfinished(), 1u);
  for (const int i : {2, 0, 1}) {
    EXPECT_TRUE(transfers.TakeEnded().empty());
    transfers.OnEnded(pieces[i].transfer, i + 1);
    EXPECT_EQ(transfers.first_unfinished(), i == 2 ? 1u : i == 0 ? 2u : 4u);
  }
  const auto ended = transfers.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].cookie, 77u);
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
