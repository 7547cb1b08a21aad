#include "fabric/libfabric/transfers.h"

#include <gtest/gtest.h>

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint64_t kKey = 7;
constexpr uint64_t kLength = uint64_t{8} << 20;
constexpr uint64_t kNoLimit = uint64_t{1} << 30;

class TransfersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RegionRecord region = {};
    region.key = kKey;
    region.length = kLength;
    region.writable = 1;
    ASSERT_TRUE(transfers_.Learn(region).ok());
  }
  void Begin(bool write, uint64_t cookie) {
    ASSERT_TRUE(
        transfers_.Begin(write, {kKey, 0, kLength}, nullptr, nullptr, cookie, kNoLimit).ok());
  }
  // Starts all pieces of reads that may start, and returns their transfers.
  std::vector<uint64_t> StartReads() {
    std::vector<uint64_t> started;
    while (transfers_.FrontRead() != nullptr) {
      EXPECT_LE(transfers_.FrontRead()->length, Transfers::kReadPiece);
      started.push_back(transfers_.FrontRead()->transfer);
      transfers_.PopRead();
    }
    return started;
  }
  Transfers transfers_;
};

TEST_F(TransfersTest, WithoutALimitAReadIsOnePiece) {
  Begin(/*write=*/false, 1);
  EXPECT_EQ(transfers_.FrontRead()->length, kLength);
}

TEST_F(TransfersTest, AFewPiecesOfReadsAreUnderWay) {
  transfers_.LimitReads();
  Begin(/*write=*/false, 1);
  Begin(/*write=*/false, 2);
  uint64_t pieces = 0;
  for (auto started = StartReads(); !started.empty(); started = StartReads()) {
    EXPECT_TRUE(pieces > 0 || started.size() == Transfers::kMaxReads);
    EXPECT_LE(started.size(), Transfers::kMaxReads);
    pieces += started.size();
    for (const uint64_t transfer : started) transfers_.OnEnded(transfer, 0);
  }
  EXPECT_EQ(pieces, 2 * kLength / Transfers::kReadPiece);
  const auto ended = transfers_.TakeEnded();
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_EQ(ended[0].cookie, 1U);
  EXPECT_EQ(ended[1].cookie, 2U);
}

TEST_F(TransfersTest, HalfOfAShortReadIsUnderWay) {
  transfers_.LimitReads();
  ASSERT_TRUE(transfers_
                  .Begin(/*write=*/false, {kKey, 0, 2 * Transfers::kReadPiece}, nullptr, nullptr, 1,
                         kNoLimit)
                  .ok());
  EXPECT_EQ(StartReads().size(), 1U);
  transfers_.OnEnded(1, 0);
  EXPECT_EQ(StartReads().size(), 1U);
}

TEST_F(TransfersTest, AWriteDoesNotWaitForReads) {
  transfers_.LimitReads();
  Begin(/*write=*/false, 1);
  StartReads();
  Begin(/*write=*/true, 2);
  ASSERT_NE(transfers_.FrontWrite(), nullptr);
  EXPECT_EQ(transfers_.FrontWrite()->length, kLength);
  transfers_.PopWrite();
  EXPECT_EQ(transfers_.started(), 1U);
  EXPECT_EQ(transfers_.FrontRead(), nullptr);
}

TEST_F(TransfersTest, ASmallWritePassesALargeOne) {
  transfers_.LimitWrites();
  Begin(/*write=*/true, 1);
  uint64_t bytes = 0;
  while (transfers_.FrontWrite() != nullptr) {
    EXPECT_LE(transfers_.FrontWrite()->length, Transfers::kWritePiece);
    bytes += transfers_.FrontWrite()->length;
    transfers_.PopWrite();
  }
  EXPECT_EQ(bytes, Transfers::kWriteWindow);
  EXPECT_TRUE(transfers_.WindowIsFull());
  const uint64_t large = transfers_.begun();
  EXPECT_EQ(transfers_.LargeTicketOf(1), large);

  const RemoteSpan small = {kKey, 0, Transfers::kLargestQuick};
  ASSERT_TRUE(transfers_.Begin(/*write=*/true, small, nullptr, nullptr, 2, kNoLimit).ok());
  EXPECT_EQ(transfers_.LargeTicketOf(2), 0U);
  EXPECT_FALSE(transfers_.QuickStartedTo(transfers_.begun()));
  ASSERT_NE(transfers_.FrontWrite(), nullptr);
  EXPECT_EQ(transfers_.FrontWrite()->transfer, 2U);
  transfers_.PopWrite();
  EXPECT_TRUE(transfers_.QuickStartedTo(transfers_.begun()));
  EXPECT_FALSE(transfers_.LargeStartedTo(large));
  EXPECT_EQ(transfers_.FrontWrite(), nullptr);

  // The end of a piece starts the next one.
  const uint64_t small_number = transfers_.started();
  for (uint64_t number = 1; !transfers_.LargeStartedTo(large); ++number) {
    EXPECT_EQ(transfers_.first_unfinished(), number);
    transfers_.OnEnded(number == small_number ? 2 : 1, number);
    while (transfers_.FrontWrite() != nullptr) transfers_.PopWrite();
  }
  EXPECT_EQ(transfers_.started(), kLength / Transfers::kWritePiece + 1);
}

TEST_F(TransfersTest, WithoutALimitWritesKeepTheirOrder) {
  Begin(/*write=*/true, 1);
  Begin(/*write=*/true, 2);
  EXPECT_EQ(transfers_.FrontWrite()->transfer, 1U);
  transfers_.PopWrite();
  EXPECT_EQ(transfers_.FrontWrite()->transfer, 2U);
  EXPECT_TRUE(transfers_.LargeStartedTo(transfers_.begun()));
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
