#include "fabric/striped/address.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>

namespace rdma_transport::fabric::striped {
namespace {

void AppendField(std::string_view field, std::string* out) {
  out->push_back(static_cast<char>(field.size() & 0xff));
  out->push_back(static_cast<char>(field.size() >> 8));
  out->append(field);
}

bool CutField(std::string_view* rest, std::string* field) {
  if (rest->size() < 2) return false;
  const size_t length = static_cast<uint8_t>((*rest)[0]) | size_t{static_cast<uint8_t>((*rest)[1])}
                                                               << 8;
  if (rest->size() - 2 < length) return false;
  field->assign(rest->substr(2, length));
  rest->remove_prefix(2 + length);
  return true;
}

bool OnOneSubnet(const RailAddress& a, const RailAddress& b) {
  return !a.subnet.empty() && a.subnet == b.subnet;
}

// Lower is better.
int RankOf(const RailAddress& a, const RailAddress& b) {
  return (OnOneSubnet(a, b) ? 0 : 2) + (a.name == b.name ? 0 : 1);
}

}  // namespace

std::string ChannelAddress::Encode() const {
  std::string bytes(1, static_cast<char>(most_rails));
  for (const RailAddress& rail : rails) {
    AppendField(rail.name, &bytes);
    AppendField(rail.subnet, &bytes);
    AppendField(rail.address, &bytes);
  }
  return bytes;
}

Status ChannelAddress::Decode(std::string_view bytes, ChannelAddress* address) {
  const Status malformed(Code::kInvalidArgument, "a malformed channel address");
  if (bytes.empty()) return malformed;
  address->most_rails = static_cast<uint8_t>(bytes.front());
  address->rails.clear();
  for (bytes.remove_prefix(1); !bytes.empty();) {
    RailAddress rail;
    if (!CutField(&bytes, &rail.name) || !CutField(&bytes, &rail.subnet) ||
        !CutField(&bytes, &rail.address)) {
      return malformed;
    }
    address->rails.push_back(std::move(rail));
  }
  const size_t count = address->rails.size();
  return count == 0 || count > kMaxRails || address->most_rails == 0 ? malformed : OkStatus();
}

std::vector<Match> MatchRails(const ChannelAddress& own, const ChannelAddress& peer, Role role,
                              const std::function<bool(const Match&)>& reaches) {
  const bool active = role == Role::kActive;
  // Down, rank, sum of the places, place at the active end, and the match.
  std::vector<std::tuple<bool, int, size_t, size_t, Match>> candidates;
  bool subnets = false;
  for (size_t i = 0; i < own.rails.size(); ++i) {
    for (size_t j = 0; j < peer.rails.size(); ++j) {
      const RailAddress& a = own.rails[i];
      const RailAddress& b = peer.rails[j];
      const bool down = a.address.empty() || b.address.empty();
      if (!down && !reaches({i, j})) continue;
      subnets |= !down && OnOneSubnet(a, b);
      candidates.emplace_back(down, RankOf(a, b), i + j, active ? i : j, Match{i, j});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a), std::get<3>(a)) <
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b), std::get<3>(b));
  });
  std::vector<Match> matches;
  for (const auto& [down, rank, sum, place, match] : candidates) {
    const RailAddress& a = own.rails[match.own];
    const RailAddress& b = peer.rails[match.peer];
    const bool known = !a.subnet.empty() && !b.subnet.empty();
    if (subnets && known && !OnOneSubnet(a, b)) continue;
    const bool used =
        std::any_of(matches.begin(), matches.end(), [match = match](const Match& other) {
          return other.own == match.own || other.peer == match.peer;
        });
    if (!used) matches.push_back(match);
  }
  const bool none = std::none_of(matches.begin(), matches.end(), [&](const Match& match) {
    return !own.rails[match.own].address.empty() && !peer.rails[match.peer].address.empty();
  });
  if (none) matches.clear();
  matches.resize(std::min({matches.size(), own.most_rails, peer.most_rails}));
  return matches;
}

}  // namespace rdma_transport::fabric::striped
