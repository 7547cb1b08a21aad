// Identifies processes that can share memory: they have the same kernel, the same network namespace
// (which scopes local sockets) and the same user.
#pragma once

#include <string>

namespace rdma_transport::fabric::host {

// Returns the same text in two processes that can share memory. It is only a hint and authenticates
// nothing; the local socket decides.
const std::string& HostIdentity();

}  // namespace rdma_transport::fabric::host
