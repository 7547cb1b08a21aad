// The sockets of a provider over TCP, which libfabric's interface does not show, and addresses of
// IP endpoints in the form in which providers have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace rdma_transport::fabric::libfabric {

// Reads an address of `format`, an FI_ number. Sets the host to, for example, "192.0.2.2" or
// "fd00::1". Returns false if it is of another kind, or too short.
bool ReadSocketAddress(uint32_t format, std::string_view bytes, std::string* host, uint16_t* port);

// Returns the descriptors that this epoll descriptor watches; none if it is of another kind.
std::vector<int> WatchedBy(int epoll);
bool IsSocket(int descriptor);

// If this is a TCP connection to `host`, an address as ReadSocketAddress() has it, which has bytes
// under way and has heard nothing for a second, lets the kernel end it when they are not
// acknowledged within `timeout`. The owner of the descriptor then sees an error. Returns whether it
// did. The owner may close the descriptor at the same time.
bool LimitSilence(int descriptor, const std::string& host, Nanos timeout);

}  // namespace rdma_transport::fabric::libfabric
