// HMAC-SHA-256 (RFC 2104, FIPS 180-4) and a constant-time comparison.
//
// No library fits: libcrypto frees its state in an exit handler while gRPC's threads still run,
// what TensorFlow exports is missing without TensorFlow, and others are not installed with the
// wheel. All functions are stateless and thread-safe, also during process exit.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rdma_transport {

constexpr size_t kHmacBytes = 32;

std::string Sha256(std::string_view message);
std::string HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that depends only on the length.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace rdma_transport
