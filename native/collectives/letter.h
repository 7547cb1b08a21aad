// A message from one member of a group to another.
#pragma once

#include <string>

namespace rdma_transport::collectives {

constexpr int kAny = -1;  // any rank, or any tag

struct Letter {
  int source = 0;
  int tag = 0;
  std::string bytes;
};

}  // namespace rdma_transport::collectives
