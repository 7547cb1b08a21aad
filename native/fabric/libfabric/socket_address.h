// Addresses of IP endpoints, in the form in which providers have them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rdma_transport::fabric::libfabric {

// Reads an address of `format`, an FI_ number. Sets the host to, for example, "192.0.2.2" or
// "fd00::1". Returns false if it is of another kind, or too short.
bool ReadSocketAddress(uint32_t format, std::string_view bytes, std::string* host, uint16_t* port);

}  // namespace rdma_transport::fabric::libfabric
