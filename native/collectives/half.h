// Conversions between float and the two types of 16 bits, without branches, so that compilers
// vectorize loops over them. Rounding is to nearest even. NaN stays NaN of its sign, and of its
// payload in float16, as where the processor converts. Also right where the processor flushes
// subnormal numbers of float to zero: those of float16 are normal numbers of float, and those of
// bfloat16 are moved as integers.
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
    const uint32_t normal = magnitude + (112u << 23);  // by which the exponents differ
    // With an implicit one, which is then subtracted: exact, and no operand is subnormal.
    const uint32_t subnormal =
        BitsOf(FloatOf(magnitude + (113u << 23)) - FloatOf(uint32_t{113} << 23));
    const uint32_t special = magnitude | 0x7f800000u;  // infinity or NaN
    uint32_t result = magnitude < (1u << 23) ? subnormal : normal;
    result = magnitude >= (0x7c00u << 13) ? special : result;
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
    const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    result = magnitude > 0x7f800000u ? nan : result;
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
    return {static_cast<uint16_t>(nan ? ((all >> 16) & 0x8000u) | 0x7fc0u : rounded)};
  }
};

}  // namespace rdma_transport::collectives
