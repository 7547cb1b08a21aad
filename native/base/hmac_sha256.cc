#include "base/hmac_sha256.h"

#include <array>
#include <cstdint>

namespace rdma_transport {
namespace {

constexpr size_t kBlock = 64;

// FIPS 180-4, 4.2.2: constants from the cube roots of the first 64 primes.
constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

uint32_t RotateRight(uint32_t value, int count) { return value >> count | value << (32 - count); }

uint32_t BigEndian(const char* bytes) {
  const auto* b = reinterpret_cast<const unsigned char*>(bytes);
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 | uint32_t{b[3]};
}

// FIPS 180-4, 6.2.2.
void Compress(const char* block, std::array<uint32_t, 8>* state) {
  uint32_t w[64];
  for (int t = 0; t < 16; ++t) w[t] = BigEndian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t x = w[t - 15];
    const uint32_t y = w[t - 2];
    w[t] = w[t - 16] + (RotateRight(x, 7) ^ RotateRight(x, 18) ^ x >> 3) + w[t - 7] +
           (RotateRight(y, 17) ^ RotateRight(y, 19) ^ y >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = *state;
  for (int t = 0; t < 64; ++t) {
    const uint32_t one = h + (RotateRight(e, 6) ^ RotateRight(e, 11) ^ RotateRight(e, 25)) +
                         ((e & f) ^ (~e & g)) + kRound[t] + w[t];
    const uint32_t two = (RotateRight(a, 2) ^ RotateRight(a, 13) ^ RotateRight(a, 22)) +
                         ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + one;
    d = c;
    c = b;
    b = a;
    a = one + two;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; ++i) (*state)[i] += added[i];
}

std::string Repeated(std::string_view key, char mask) {
  std::string block(kBlock, mask);
  for (size_t i = 0; i < key.size(); ++i) block[i] = static_cast<char>(block[i] ^ key[i]);
  return block;
}

}  // namespace

std::string Sha256(std::string_view message) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const uint64_t bits = uint64_t{message.size()} * 8;
  while (message.size() >= kBlock) {
    Compress(message.data(), &state);
    message.remove_prefix(kBlock);
  }
  // Padding: the remaining bytes, a one bit, zeros, and the length in bits in the last eight bytes
  // of a block.
  std::string rest(message);
  rest.push_back('\x80');
  while (rest.size() % kBlock != kBlock - 8) rest.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) rest.push_back(static_cast<char>(bits >> shift));
  for (size_t at = 0; at < rest.size(); at += kBlock) Compress(rest.data() + at, &state);
  std::string digest;
  for (const uint32_t word : state) {
    for (int shift = 24; shift >= 0; shift -= 8) digest.push_back(static_cast<char>(word >> shift));
  }
  return digest;
}

std::string HmacSha256(std::string_view key, std::string_view message) {
  const std::string hashed = key.size() > kBlock ? Sha256(key) : std::string(key);
  const std::string inner = Sha256(Repeated(hashed, '\x36').append(message));
  return Sha256(Repeated(hashed, '\x5c').append(inner));
}

bool EqualInConstantTime(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different = static_cast<unsigned char>(different | (a[i] ^ b[i]));
  }
  return different == 0;
}

}  // namespace rdma_transport
