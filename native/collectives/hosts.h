// Which members of a group are on one host: they map each other's memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace rdma_transport::collectives {

// A group as one member sees it. All hosts have equally many members.
struct Hosts {
  std::vector<int> local;   // the ranks of this host, this one included, in ascending order
  std::vector<int> across;  // one rank of each host, in the order of their lowest ranks: those that
                            // have the same place on their host as this one
  size_t place = 0;         // of this member in `local`
  size_t host = 0;          // of this member in `across`
};

// `lowest`: of each member, the lowest rank whose memory it maps, or its own. Returns nothing
// unless there are at least two hosts, and on each of them the same number of members, at least
// two.
std::optional<Hosts> FindHosts(const std::vector<int>& lowest, int rank);

}  // namespace rdma_transport::collectives
