#include "collectives/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rdma_transport::collectives {
namespace {

using Ranks = std::vector<std::vector<int>>;

constexpr size_t kChunk = 4096;

const std::vector<Ranks> kLayouts = {
    {{0}, {1}}, {{0, 1}, {2, 3}}, {{0, 2}, {1, 3}}, {{0, 1, 2}, {3}}, {{0, 4}, {1, 2, 3}, {5}},
};

size_t MembersOf(const Ranks& hosts) {
  size_t members = 0;
  for (const auto& ranks : hosts) members += ranks.size();
  return members;
}

// Each host has one owner of each lane.
void ExpectOwnersOnTheirHosts(const Division& division) {
  for (const Lane& lane : division.lanes) {
    EXPECT_GT(lane.range.length, 0U);
    ASSERT_EQ(lane.owners.size(), division.hosts.size());
    ASSERT_EQ(lane.pieces.size(), division.hosts.size());
    for (size_t host = 0; host < lane.owners.size(); ++host) {
      const std::vector<int>& ranks = division.hosts[host];
      EXPECT_EQ(std::count(ranks.begin(), ranks.end(), lane.owners[host]), 1);
    }
  }
}

// Returns the bytes that a member owns.
size_t OwnedBy(const Division& division, int rank) {
  size_t bytes = 0;
  for (const Lane& lane : division.lanes) {
    if (std::count(lane.owners.begin(), lane.owners.end(), rank) > 0) bytes += lane.range.length;
  }
  return bytes;
}

TEST(LanesTest, MembersAreGroupedByHost) {
  EXPECT_EQ(OneLevel(3), (Ranks{{0}, {1}, {2}}));
  EXPECT_EQ(ByHost({0, 1, 0, 1, 4}), (Ranks{{0, 2}, {1, 3}, {4}}));
}

TEST(LanesTest, AnAllReduceIsDividedWithoutGaps) {
  for (const Ranks& hosts : kLayouts) {
    for (const size_t bytes : {size_t{0}, size_t{4}, size_t{100}, size_t{8000}, size_t{100'004}}) {
      const Division division = DivideAllReduce(hosts, bytes, kChunk);
      ExpectOwnersOnTheirHosts(division);
      size_t end = 0;
      for (const Lane& lane : division.lanes) {
        for (const Round& piece : lane.pieces) {
          EXPECT_EQ(piece.begin, end);
          EXPECT_EQ(piece.begin % kLine == 0 || piece.length == 0, true);
          end += piece.length;
        }
        EXPECT_EQ(lane.range.begin + lane.range.length, end);
        EXPECT_LE(lane.range.length, kChunk);
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

TEST(LanesTest, MembersOfAHostShareTheWork) {
  constexpr size_t kBytes = size_t{6} << 20;
  const Division division = DivideAllReduce({{0, 1, 2}, {3, 4, 5}, {6}}, kBytes, kBytes);
  EXPECT_EQ(division.lanes.size(), 3U);
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(OwnedBy(division, rank), kBytes / 3);
  EXPECT_EQ(OwnedBy(division, 6), kBytes);
}

TEST(LanesTest, OfAReduceScatterEachMemberOwnsWhatItGets) {
  for (const Ranks& hosts : kLayouts) {
    const Division division = DivideReduceScatter(hosts, 100);
    ExpectOwnersOnTheirHosts(division);
    EXPECT_EQ(division.lanes.size(), MembersOf(hosts));
    for (const Lane& lane : division.lanes) {
      const auto receives = [](const Round& piece) { return piece.length > 0; };
      EXPECT_EQ(std::count_if(lane.pieces.begin(), lane.pieces.end(), receives), 1);
      const auto found = std::find_if(lane.pieces.begin(), lane.pieces.end(), receives);
      const int rank = lane.owners[static_cast<size_t>(found - lane.pieces.begin())];
      EXPECT_EQ(found->begin, static_cast<size_t>(rank) * 100);
      EXPECT_EQ(found->length, 100U);
      EXPECT_EQ(lane.range.begin, found->begin);
      EXPECT_EQ(lane.range.length, found->length);
    }
    EXPECT_TRUE(DivideReduceScatter(hosts, 0).lanes.empty());
  }
}

TEST(LanesTest, EachMemberCombinesEverythingOfFewBytes) {
  const Division division = DivideNothing(3, 12);
  ASSERT_EQ(division.lanes.size(), 1U);
  ExpectOwnersOnTheirHosts(division);
  for (const Round& piece : division.lanes[0].pieces) EXPECT_EQ(piece.length, 12U);
  EXPECT_TRUE(DivideNothing(3, 0).lanes.empty());
}

}  // namespace
}  // namespace rdma_transport::collectives
