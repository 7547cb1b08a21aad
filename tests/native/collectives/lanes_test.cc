#include "collectives/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rdma_transport::collectives {
namespace {

// Returns the bytes that a member owns.
size_t OwnedBy(const Division& division, int rank) {
  size_t bytes = 0;
  for (const Lane& lane : division.lanes) {
    if (std::count(lane.owners.begin(), lane.owners.end(), rank) > 0) bytes += lane.range.length;
  }
  return bytes;
}

TEST(LanesTest, MembersOfAHostShareTheWork) {
  constexpr size_t kBytes = size_t{6} << 20;
  const Division division = DivideAllReduce({{0, 1, 2}, {3, 4, 5}, {6}}, kBytes, kBytes);
  EXPECT_EQ(division.lanes.size(), 3U);
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(OwnedBy(division, rank), kBytes / 3);
  EXPECT_EQ(OwnedBy(division, 6), kBytes);
}

}  // namespace
}  // namespace rdma_transport::collectives
