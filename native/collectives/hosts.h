// Which members of a group are on one host: they map each other's memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace rdma_transport::collectives {

// A group as one member sees it.
struct Hosts {
  // By host, in the order of their lowest ranks; on each host in ascending order.
  std::vector<std::vector<int>> ranks;
  size_t host = 0;   // of this member
  size_t place = 0;  // of this member on its host

  size_t count() const { return ranks.size(); }
  const std::vector<int>& local() const { return ranks[host]; }
  // Returns the number of members of the smallest host. Members with a lower place than that send
  // to other hosts, and work for the others of their host.
  size_t lanes() const;
  bool has_lane() const { return place < lanes(); }
  // Returns whether all hosts have equally many members.
  bool equal() const;
  // Returns the host of a member.
  size_t Of(int rank) const;
  // Returns the member of a host that has the same place there as this one here, which has a lane.
  int Across(size_t other) const { return ranks[other][place]; }
};

// `lowest`: of each member, the lowest rank whose memory it maps, or its own. Returns nothing
// unless there are at least two hosts, and several members on one of them.
std::optional<Hosts> FindHosts(const std::vector<int>& lowest, int rank);

}  // namespace rdma_transport::collectives
