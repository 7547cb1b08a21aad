// Which processes may share memory: those under one kernel, in one network namespace (where local
// sockets are found), of one user.
#pragma once

#include <string>

namespace rdma_transport::fabric::host {

// Equal for two processes that may; says nothing about who they are. Only a hint: the proof is the
// local socket that is reached.
const std::string& HostIdentity();

}  // namespace rdma_transport::fabric::host
