#include "collectives/lanes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace rdma_transport::collectives {
namespace {

// On each host, the member with this place, or another one if the host has fewer.
std::vector<int> OwnersAt(const std::vector<std::vector<int>>& hosts, size_t place) {
  std::vector<int> owners;
  owners.reserve(hosts.size());
  for (const auto& ranks : hosts) owners.push_back(ranks[place % ranks.size()]);
  return owners;
}

}  // namespace

std::vector<std::vector<int>> OneLevel(size_t members) {
  std::vector<std::vector<int>> hosts;
  hosts.reserve(members);
  for (size_t rank = 0; rank < members; ++rank) hosts.push_back({static_cast<int>(rank)});
  return hosts;
}

std::vector<std::vector<int>> ByHost(const std::vector<int>& lowest) {
  std::map<int, std::vector<int>> members;
  for (size_t i = 0; i < lowest.size(); ++i) members[lowest[i]].push_back(static_cast<int>(i));
  std::vector<std::vector<int>> hosts;
  hosts.reserve(members.size());
  for (auto& [first, ranks] : members) hosts.push_back(std::move(ranks));
  return hosts;
}

size_t HostOf(const std::vector<std::vector<int>>& hosts, int rank) {
  const auto found = std::find_if(hosts.begin(), hosts.end(), [rank](const auto& ranks) {
    return std::binary_search(ranks.begin(), ranks.end(), rank);
  });
  return static_cast<size_t>(found - hosts.begin());
}

Division DivideAllReduce(std::vector<std::vector<int>> hosts, size_t bytes, size_t chunk) {
  size_t largest = 0;
  for (const auto& ranks : hosts) largest = std::max(largest, ranks.size());
  Division division;
  const size_t chunks = std::max<size_t>((bytes + chunk * largest - 1) / (chunk * largest), 1);
  for (size_t number = 0; number < chunks; ++number) {
    const Round whole = Divide({0, 0, bytes}, chunks, number);
    for (size_t place = 0; place < largest; ++place) {
      Lane lane;
      lane.range = Divide(whole, largest, place);
      if (lane.range.length == 0) continue;
      lane.owners = OwnersAt(hosts, place);
      for (size_t host = 0; host < hosts.size(); ++host) {
        lane.pieces.push_back(Divide(lane.range, hosts.size(), host));
      }
      division.lanes.push_back(std::move(lane));
    }
  }
  division.hosts = std::move(hosts);
  return division;
}

Division DivideNothing(size_t members, size_t bytes) {
  Division division;
  division.hosts = OneLevel(members);
  if (bytes == 0) return division;
  const Round all = {0, 0, bytes};
  division.lanes = {{all, OwnersAt(division.hosts, 0), std::vector<Round>(members, all)}};
  return division;
}

Division DivideReduceScatter(std::vector<std::vector<int>> hosts, size_t bytes) {
  Division division;
  for (size_t host = 0; host < hosts.size() && bytes > 0; ++host) {
    for (size_t place = 0; place < hosts[host].size(); ++place) {
      const auto rank = static_cast<size_t>(hosts[host][place]);
      Lane lane;
      lane.range = {rank, rank * bytes, bytes};
      lane.owners = OwnersAt(hosts, place);
      lane.pieces.resize(hosts.size());
      lane.pieces[host] = lane.range;
      division.lanes.push_back(std::move(lane));
    }
  }
  division.hosts = std::move(hosts);
  return division;
}

}  // namespace rdma_transport::collectives
