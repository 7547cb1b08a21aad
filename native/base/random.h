// Unpredictable random values from the kernel's generator. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace rdma_transport {

uint64_t Random64();
std::string RandomBytes(size_t count);

// Return lower-case hexadecimal.
std::string Hex(uint64_t value);
std::string Hex(const std::string& bytes);

}  // namespace rdma_transport
