#include "collectives/hosts.h"

#include <algorithm>
#include <map>

namespace rdma_transport::collectives {

std::optional<Hosts> FindHosts(const std::vector<int>& lowest, int rank) {
  std::map<int, std::vector<int>> members;  // by the lowest rank of their host
  for (size_t i = 0; i < lowest.size(); ++i) members[lowest[i]].push_back(static_cast<int>(i));
  Hosts hosts;
  hosts.local = members[lowest[rank]];
  const size_t many = hosts.local.size();
  if (members.size() < 2 || many < 2) return std::nullopt;
  const auto own = std::find(hosts.local.begin(), hosts.local.end(), rank);
  hosts.place = static_cast<size_t>(own - hosts.local.begin());
  for (const auto& [first, ranks] : members) {
    if (ranks.size() != many) return std::nullopt;
    if (first == lowest[rank]) hosts.host = hosts.across.size();
    hosts.across.push_back(ranks[hosts.place]);
  }
  return hosts;
}

}  // namespace rdma_transport::collectives
