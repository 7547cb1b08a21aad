// How members that request each other's memory, one transfer at a time, divide a reduction.
//
// A lane is a range of the arrays that is reduced independently of all others. On each host one
// member, the lane's owner there, combines what the members of its host contribute. Then each owner
// combines a piece of that across the hosts. So a byte of a lane crosses the network once in each
// direction, however many members a host has. On one level, each member counts as a host of its
// own.
//
// Contributions are combined in the order of ranks, on two levels first on each host and then in
// the order of hosts.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/round.h"

namespace rdma_transport::collectives {

struct Lane {
  Round range;                // of the contributions, in bytes; never empty
  std::vector<int> owners;    // by host
  std::vector<Round> pieces;  // by host: what its owner combines across the hosts; may be empty
};

struct Division {
  std::vector<std::vector<int>> hosts;  // ranks, in the order in which they are combined
  std::vector<Lane> lanes;
};

// The functions below give the same division on all members, if these pass the same arguments.
// There are at least two hosts.

// Returns each member as a host of its own.
std::vector<std::vector<int>> OneLevel(size_t members);
// Returns the members of each host. `lowest`: of each member, the lowest rank on its host.
std::vector<std::vector<int>> ByHost(const std::vector<int>& lowest);
// Returns the index of the host of a member. Each host's ranks are in order.
size_t HostOf(const std::vector<std::vector<int>>& hosts, int rank);

// Of an all-reduce of `bytes` bytes: the pieces are distinct. Lanes of at most about `chunk` bytes
// for each member of the largest host follow each other through the arrays.
Division DivideAllReduce(std::vector<std::vector<int>> hosts, size_t bytes, size_t chunk);
// Of an all-reduce in which each of the members combines everything by itself.
Division DivideNothing(size_t members, size_t bytes);
// Of a reduce-scatter: each member, by rank, gets `bytes` bytes. One lane for each of them.
Division DivideReduceScatter(std::vector<std::vector<int>> hosts, size_t bytes);

}  // namespace rdma_transport::collectives
