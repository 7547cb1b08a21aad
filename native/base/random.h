// Random values that another process cannot guess (from the kernel's generator).
#pragma once

#include <cstdint>
#include <string>

namespace rdma_transport {

uint64_t Random64();
std::string RandomBytes(size_t count);

// Lower-case hexadecimal.
std::string Hex(uint64_t value);
std::string Hex(const std::string& bytes);

}  // namespace rdma_transport
