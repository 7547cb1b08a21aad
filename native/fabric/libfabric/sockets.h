// The sockets of a provider over TCP, which libfabric's interface does not show.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace rdma_transport::fabric::libfabric {

// Returns the descriptors that this epoll descriptor watches; none if it is of another kind.
std::vector<int> WatchedBy(int epoll);
bool IsSocket(int descriptor);

// If this is a TCP connection to `host`, an address as ReadSocketAddress() has it, which has bytes
// under way and has heard nothing for a second, lets the kernel end it when they are not
// acknowledged within `timeout`. The owner of the descriptor then sees an error. Returns whether it
// did. The owner may close the descriptor at the same time.
bool LimitSilence(int descriptor, const std::string& host, Nanos timeout);

}  // namespace rdma_transport::fabric::libfabric
