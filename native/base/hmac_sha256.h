// HMAC-SHA-256 (RFC 2104, FIPS 180-4), and a comparison that takes the same time whatever differs.
//
// Why not a library: docs/architecture.md. Stateless; any thread, also while the process exits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace rdma_transport {

constexpr size_t kHmacBytes = 32;

std::string Sha256(std::string_view message);
std::string HmacSha256(std::string_view key, std::string_view message);

// Takes as long for any two strings of the same length.
bool EqualInConstantTime(std::string_view a, std::string_view b);

}  // namespace rdma_transport
