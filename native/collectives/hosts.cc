#include "collectives/hosts.h"

#include <algorithm>

#include "collectives/lanes.h"

namespace rdma_transport::collectives {

size_t Hosts::Of(int rank) const { return HostOf(ranks, rank); }

size_t Hosts::lanes() const {
  const auto smaller = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  return std::min_element(ranks.begin(), ranks.end(), smaller)->size();
}

bool Hosts::equal() const {
  return std::all_of(ranks.begin(), ranks.end(),
                     [this](const auto& members) { return members.size() == local().size(); });
}

std::optional<Hosts> FindHosts(const std::vector<int>& lowest, int rank) {
  Hosts hosts;
  hosts.ranks = ByHost(lowest);
  if (hosts.count() < 2 || hosts.count() == lowest.size()) return std::nullopt;
  hosts.host = hosts.Of(rank);
  const std::vector<int>& local = hosts.local();
  hosts.place = static_cast<size_t>(std::find(local.begin(), local.end(), rank) - local.begin());
  return hosts;
}

}  // namespace rdma_transport::collectives
