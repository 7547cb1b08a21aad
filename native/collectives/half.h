// Conversions between float and the two types of 16 bits, without branches, so that compilers
// vectorize loops over them. Rounding is to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace rdma_transport::collectives {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

struct Float16 {
  uint16_t bits;

  float ToFloat() const {
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
    // The exponents differ by 112; the product is exact, also for subnormal numbers.
    const uint32_t scaled = BitsOf(FloatOf(magnitude) * FloatOf(uint32_t{112 + 127} << 23));
    const uint32_t special = magnitude | 0x7f800000u;  // infinity or NaN
    const uint32_t result = magnitude >= (uint32_t{0x7c00} << 13) ? special : scaled;
    return FloatOf(result | static_cast<uint32_t>(bits & 0x8000) << 16);
  }

  static Float16 FromFloat(float value) {
    const uint32_t all = BitsOf(value);
    const uint32_t magnitude = all & 0x7fffffffu;
    // Normal result: rebias the exponent, and round the 13 bits that go.
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
    // Subnormal result: adding 0.5 moves the bits that stay to the end of the mantissa, rounded.
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
    uint32_t result = magnitude < (113u << 23) ? subnormal : normal;
    result = magnitude >= 0x47800000u ? 0x7c00u : result;  // 65536 and above
    result = magnitude > 0x7f800000u ? 0x7e00u : result;   // NaN
    return {static_cast<uint16_t>(result | ((all >> 16) & 0x8000u))};
  }
};

struct Bfloat16 {
  uint16_t bits;

  float ToFloat() const { return FloatOf(static_cast<uint32_t>(bits) << 16); }

  static Bfloat16 FromFloat(float value) {
    const uint32_t all = BitsOf(value);
    const uint32_t rounded = (all + 0x7fffu + ((all >> 16) & 1)) >> 16;
    const bool nan = (all & 0x7fffffffu) > 0x7f800000u;
    return {static_cast<uint16_t>(nan ? (all >> 16) | 0x40u : rounded)};
  }
};

}  // namespace rdma_transport::collectives
