// Identifies processes that can share memory: they have the same kernel, the same network namespace
// (which scopes local sockets) and the same user.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace rdma_transport::fabric::host {

// Returns the same text in two processes that can share memory. It is only a hint and authenticates
// nothing; the local socket decides.
const std::string& HostIdentity();

// Returns OK if a process of this identity can share memory with one of `own`; kUnavailable if it
// is on another host; and kPermissionDenied, with what keeps them apart, if it is on the same one.
Status CanShareMemory(std::string_view identity, std::string_view own = HostIdentity());

}  // namespace rdma_transport::fabric::host
