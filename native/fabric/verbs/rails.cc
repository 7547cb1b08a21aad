#include "fabric/verbs/rails.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "fabric/verbs/subnet.h"

namespace rdma_transport::fabric::verbs {
namespace {

bool OnOneSubnet(const ChannelAddress::Port& a, const ChannelAddress::Port& b) {
  return SamePrefix(a.gid.data(), b.gid.data(), std::min(a.subnet_bits, b.subnet_bits));
}

// Of the active and the passive end.
std::vector<Rail> Match(const std::vector<ChannelAddress::Port>& active,
                        const std::vector<ChannelAddress::Port>& passive, bool routed) {
  std::vector<std::tuple<bool, size_t, size_t, size_t>> candidates;
  for (size_t i = 0; i < active.size(); ++i) {
    for (size_t j = 0; j < passive.size(); ++j) {
      if (!active[i].known || !passive[j].known) continue;
      if (!Reachable(active[i], passive[j]).ok()) continue;
      if (!routed && !OnOneSubnet(active[i], passive[j])) continue;
      const bool down = !active[i].active || !passive[j].active;
      candidates.emplace_back(down, i + j, i, j);
    }
  }
  std::sort(candidates.begin(), candidates.end());
  std::vector<Rail> rails;
  for (const auto& [down, rank, i, j] : candidates) {
    const bool used = std::any_of(rails.begin(), rails.end(), [i = i, j = j](const Rail& rail) {
      return rail.own == i || rail.peer == j;
    });
    if (!used) rails.push_back({i, j});
  }
  return rails;
}

// Ports that are not known yet get what is left, in the order of both ends.
void AddUnknown(const std::vector<ChannelAddress::Port>& active,
                const std::vector<ChannelAddress::Port>& passive, std::vector<Rail>* rails) {
  const auto used = [rails](size_t Rail::* end, size_t port) {
    return std::any_of(rails->begin(), rails->end(),
                       [end, port](const Rail& rail) { return rail.*end == port; });
  };
  for (size_t i = 0; i < active.size(); ++i) {
    for (size_t j = 0; j < passive.size(); ++j) {
      if (used(&Rail::own, i) || used(&Rail::peer, j)) continue;
      const bool both = active[i].known && passive[j].known;
      if (!both && active[i].ethernet == passive[j].ethernet) rails->push_back({i, j});
    }
  }
}

std::vector<size_t> PairsOf(const ChannelAddress& address, size_t port) {
  std::vector<size_t> pairs;
  for (size_t i = 0; i < address.queue_pairs.size(); ++i) {
    if (address.queue_pairs[i].port == port) pairs.push_back(i);
  }
  return pairs;
}

}  // namespace

ChannelAddress::Port AddressOf(const Port& port) {
  ChannelAddress::Port address;
  address.known = port.known;
  address.ethernet = port.ethernet;
  std::memcpy(address.gid.data(), port.gid.bytes.raw, address.gid.size());
  address.subnet_bits = port.subnet_bits;
  address.lid = port.lid;
  address.mtu = port.mtu;
  address.read_depth = static_cast<uint32_t>(std::max(port.attributes.max_qp_rd_atom, 1));
  return address;
}

Status Reachable(const ChannelAddress::Port& own, const ChannelAddress::Port& peer) {
  if (peer.ethernet != own.ethernet) {
    return Status(Code::kUnavailable,
                  std::string("it is on ") + (peer.ethernet ? "RoCE" : "InfiniBand") + ", this is");
  }
  if (own.ethernet && IsIpv4(peer.gid.data()) != IsIpv4(own.gid.data())) {
    return Status(Code::kUnavailable,
                  "one GID is IPv4, the other IPv6: set RDMA_TRANSPORT_GID_INDEX so "
                  "that both are of one kind; here");
  }
  return OkStatus();
}

std::vector<Rail> MatchPorts(const ChannelAddress& own, const ChannelAddress& peer, Role role) {
  const bool first = role == Role::kActive;
  const auto& active = first ? own.ports : peer.ports;
  const auto& passive = first ? peer.ports : own.ports;
  std::vector<Rail> rails = Match(active, passive, /*routed=*/false);
  if (rails.empty()) rails = Match(active, passive, /*routed=*/true);
  if (!rails.empty()) AddUnknown(active, passive, &rails);
  if (!first) {
    for (Rail& rail : rails) std::swap(rail.own, rail.peer);
  }
  return rails;
}

std::vector<ConnectedPair> MatchQueuePairs(const ChannelAddress& own, const ChannelAddress& peer,
                                           Role role) {
  std::vector<ConnectedPair> pairs;
  std::vector<Rail> rails = MatchPorts(own, peer, role);
  rails.resize(std::min<size_t>(rails.size(), std::min(own.rails, peer.rails)));
  for (size_t turn = 0; turn < kMaxQueuePairs; ++turn) {
    for (const Rail& rail : rails) {
      const std::vector<size_t> mine = PairsOf(own, rail.own);
      const std::vector<size_t> theirs = PairsOf(peer, rail.peer);
      if (turn < mine.size() && turn < theirs.size()) pairs.push_back({mine[turn], theirs[turn]});
    }
  }
  return pairs;
}

}  // namespace rdma_transport::fabric::verbs
