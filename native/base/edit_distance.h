// How far two names are apart, to say which one was meant.
#pragma once

#include <cstddef>
#include <string>

namespace rdma_transport {

// Returns the number of characters to insert, remove or replace.
size_t EditDistance(const std::string& a, const std::string& b);

}  // namespace rdma_transport
