// Ids become rows, each once, by owner.
#include "embeddings/ids.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace rdma_transport::embeddings {
namespace {

TEST(IdsTest, IdsThatAreNoRowsAreNamed) {
  const int32_t small[] = {4, -2};
  const int64_t signed_[] = {0, 10};
  const uint64_t large[] = {uint64_t{1} << 63};
  std::vector<uint64_t> rows;
  const Status negative = RowsOf({IdType::kInt32, small, 2}, 10, "users", &rows);
  EXPECT_EQ(negative.message(), "table 'users' has no row -2: it has 10 rows, from 0 on");
  EXPECT_EQ(RowsOf({IdType::kInt64, signed_, 2}, 10, "t", &rows).code(), Code::kInvalidArgument);
  EXPECT_EQ(RowsOf({IdType::kUint64, large, 1}, 10, "t", &rows).code(), Code::kInvalidArgument);
  EXPECT_TRUE(RowsOf({IdType::kInt64, signed_, 1}, 10, "t", &rows).ok());
  EXPECT_EQ(rows, std::vector<uint64_t>{0});
  EXPECT_TRUE(RowsOf({IdType::kInt64, nullptr, 0}, 10, "t", &rows).ok());
  EXPECT_TRUE(rows.empty());
}

void CheckGrouped(const std::vector<uint64_t>& rows, int owners) {
  const Grouped made = GroupByOwner(rows, owners);
  EXPECT_EQ(std::set<uint64_t>(made.rows.begin(), made.rows.end()).size(), made.rows.size());
  ASSERT_EQ(made.place.size(), rows.size());
  ASSERT_EQ(made.first.size(), made.rows.size());
  std::map<uint64_t, uint32_t> first;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(made.rows[made.place[i]], rows[i]);
    first.emplace(rows[i], static_cast<uint32_t>(i));
  }
  ASSERT_EQ(made.counts.size(), static_cast<size_t>(owners));
  size_t at = 0;
  for (int owner = 0; owner < owners; ++owner) {
    for (uint64_t i = 0; i < made.counts[owner]; ++i, ++at) {
      EXPECT_EQ(made.rows[at] % static_cast<uint64_t>(owners), static_cast<uint64_t>(owner));
      EXPECT_EQ(made.first[at], first[made.rows[at]]);
      if (i > 0) {
        EXPECT_LT(made.first[at - 1], made.first[at]);
      }
    }
  }
  EXPECT_EQ(at, first.size());
}

TEST(IdsTest, EachRowOnceByOwner) {
  CheckGrouped({}, 3);
  CheckGrouped(std::vector<uint64_t>(1000, 77), 4);
  std::mt19937_64 random(1);
  for (const uint64_t most : {1, 5, 1000, 1'000'000'000}) {
    for (const int owners : {1, 2, 7}) {
      std::vector<uint64_t> rows(2000);
      for (uint64_t& row : rows) row = random() % most;
      CheckGrouped(rows, owners);
    }
  }
}

}  // namespace
}  // namespace rdma_transport::embeddings
