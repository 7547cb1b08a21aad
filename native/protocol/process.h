// The one runtime of a process, and its status socket.
#pragma once

#include <string>

#include "base/status.h"
#include "protocol/runtime.h"

namespace rdma_transport {

// Returns the runtime of this process, which is created, from the environment's settings, on first
// use. A forked child gets its own. The runtime is never destroyed; its threads end with the
// process. Thread-safe.
Status ProcessRuntime(Runtime** runtime);

// Returns the runtime that ProcessRuntime() created, or null. Thread-safe and cheap.
Runtime* ProcessRuntimeIfMade();

// StatsJson() of this process.
std::string ProcessStatsJson();

}  // namespace rdma_transport
