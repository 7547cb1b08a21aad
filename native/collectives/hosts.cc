#include "collectives/hosts.h"

#include <algorithm>
#include <map>

namespace rdma_transport::collectives {

size_t Hosts::Of(int rank) const {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [rank](const auto& members) {
    return std::binary_search(members.begin(), members.end(), rank);
  });
  return static_cast<size_t>(found - ranks.begin());
}

std::optional<Hosts> FindHosts(const std::vector<int>& lowest, int rank) {
  std::map<int, std::vector<int>> members;  // by the lowest rank of their host
  for (size_t i = 0; i < lowest.size(); ++i) members[lowest[i]].push_back(static_cast<int>(i));
  const size_t many = members.begin()->second.size();
  if (members.size() < 2 || many < 2) return std::nullopt;
  Hosts hosts;
  for (const auto& [first, ranks] : members) {
    if (ranks.size() != many) return std::nullopt;
    if (first == lowest[rank]) hosts.host = hosts.ranks.size();
    hosts.ranks.push_back(ranks);
  }
  const std::vector<int>& local = hosts.local();
  hosts.place = static_cast<size_t>(std::find(local.begin(), local.end(), rank) - local.begin());
  return hosts;
}

}  // namespace rdma_transport::collectives
