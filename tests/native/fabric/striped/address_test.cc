// Addresses of striped channels, and which rails are connected with each other.

#include "fabric/striped/address.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace rdma_transport::fabric::striped {
namespace {

ChannelAddress With(std::vector<RailAddress> rails) {
  ChannelAddress address;
  address.rails = std::move(rails);
  return address;
}

RailAddress At(const std::string& name, const std::string& subnet) { return {name, subnet, "x"}; }

RailAddress Down(const std::string& name) { return {name, "", ""}; }

// "0-1 1-0": the active end's rail 0 and the passive end's rail 1, and so on. Both ends must agree.
std::string Matched(const ChannelAddress& active, const ChannelAddress& passive,
                    const Match& unreachable = {kMaxRails, kMaxRails}) {
  std::string text;
  std::string seen_by_passive;
  const auto one = [&](const Match& match) {
    return match.own != unreachable.own || match.peer != unreachable.peer;
  };
  const auto other = [&](const Match& match) { return one({match.peer, match.own}); };
  for (const Match& match : MatchRails(active, passive, Role::kActive, one)) {
    text += " " + std::to_string(match.own) + "-" + std::to_string(match.peer);
  }
  for (const Match& match : MatchRails(passive, active, Role::kPassive, other)) {
    seen_by_passive += " " + std::to_string(match.peer) + "-" + std::to_string(match.own);
  }
  EXPECT_EQ(text, seen_by_passive);
  return text;
}

TEST(StripedAddress, RailsOfOneSubnetAreMatchedFirst) {
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "s")}), With({At("c", "s"), At("d", "s")})),
            " 0-0 1-1");
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "t")}), With({At("a", "t"), At("b", "s")})),
            " 0-1 1-0");
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "s")}), With({At("b", "s"), At("a", "s")})),
            " 0-1 1-0")
      << "and of one name";
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "t")}), With({At("c", "t")})), " 1-0");
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "t")}), With({At("a", "s"), At("b", "u")})), " 0-0")
      << "the others are not routed";
}

TEST(StripedAddress, OthersAreMatchedByNameAndThenByOrder) {
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "t")}), With({At("b", "u"), At("a", "v")})),
            " 0-1 1-0");
  EXPECT_EQ(Matched(With({At("a", ""), At("b", "")}), With({At("c", ""), At("d", "")})),
            " 0-0 1-1");
  EXPECT_EQ(Matched(With({At("a", ""), At("b", "")}), With({At("c", ""), At("d", "")}), {0, 0}),
            " 0-1 1-0");
}

TEST(StripedAddress, RailsThatAreDownComeLast) {
  EXPECT_EQ(Matched(With({Down("a"), At("b", "s")}), With({At("a", "s"), At("b", "s")})),
            " 1-1 0-0");
  EXPECT_EQ(Matched(With({Down("a")}), With({At("a", "s")})), "");
}

TEST(StripedAddress, NoEndGetsMoreRailsThanItWants) {
  ChannelAddress one = With({At("a", "s"), At("b", "s")});
  one.most_rails = 1;
  EXPECT_EQ(Matched(one, With({At("a", "s"), At("b", "s")})), " 0-0");
  EXPECT_EQ(Matched(With({At("a", "s"), At("b", "s")}), one), " 0-0");
}

}  // namespace
}  // namespace rdma_transport::fabric::striped
