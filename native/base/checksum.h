// A checksum that detects accidental corruption. It does not protect against attacks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma_transport {

// Computes three interleaved CRC-32Cs, each over every third word, because a single one would be
// bound by latency, and combines them with the length. The result does not depend on the processor.
// Thread-safe.
uint32_t ChecksumOf(const char* data, size_t length);
// The version for processors without a CRC instruction; public for tests.
uint32_t ChecksumByTable(const char* data, size_t length);

}  // namespace rdma_transport
