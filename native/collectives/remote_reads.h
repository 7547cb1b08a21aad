// Reads of memory that other members have shared for that, on fabrics that cannot map it.
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.h"

namespace rdma_transport::collectives {

// One-sided reads that are awaited together. Their members' Mesh guards it.
struct RemoteReads {
  // Owns the memory that is read into. Reads that a lost member does not end keep it.
  std::shared_ptr<const void> target;
  size_t under_way = 0;
  Status status;  // the first error
};

}  // namespace rdma_transport::collectives
