// A checksum that finds bytes that changed by accident; it is no protection against intent.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma_transport {

// Three CRC-32Cs side by side, each over every third word, because one alone waits for itself; then
// one of the three and of the length. The same on every processor. Thread-safe.
uint32_t ChecksumOf(const char* data, size_t length);
// What processors without an instruction for it use; for tests.
uint32_t ChecksumByTable(const char* data, size_t length);

}  // namespace rdma_transport
