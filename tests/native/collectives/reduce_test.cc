#include "collectives/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <vector>

#include "base/float_mode.h"
#include "collectives/half.h"

namespace rdma_transport::collectives {
namespace {

template <typename T>
T Combined(DType dtype, ReduceOp op, std::initializer_list<T> values) {
  std::vector<const char*> sources;
  for (const T& value : values) sources.push_back(reinterpret_cast<const char*>(&value));
  T result = {};
  T copy = {};
  Reduce(dtype, op, sources, 1, reinterpret_cast<char*>(&result), reinterpret_cast<char*>(&copy));
  EXPECT_EQ(std::memcmp(&result, &copy, sizeof(T)), 0);
  return result;
}

// The value of a float16, without arithmetic of float.
double ValueOf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 0x3ff;
  const double sign = bits >> 15 ? -1 : 1;
  if (exponent == 31) return mantissa ? std::nan("") : sign * HUGE_VAL;
  return sign * std::ldexp(exponent ? 1024 + mantissa : mantissa, std::max(exponent, 1) - 25);
}

TEST(HalfTest, AllFloat16AreConvertedBothWays) {
  for (const bool flush : {false, true}) {
    const FloatMode mode(flush);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const Float16 half = {static_cast<uint16_t>(bits)};
      const float value = half.ToFloat();
      const uint16_t back = Float16::FromFloat(value).bits;
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(ValueOf(half.bits)));
        EXPECT_EQ(back, bits | 0x200);  // quiet
      } else {
        EXPECT_EQ(static_cast<double>(value), ValueOf(half.bits)) << bits;
        EXPECT_EQ(back, bits);
      }
    }
  }
}

TEST(HalfTest, AllBfloat16AreConvertedBothWays) {
  for (const bool flush : {false, true}) {
    const FloatMode mode(flush);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = Bfloat16{static_cast<uint16_t>(bits)}.ToFloat();
      EXPECT_EQ(BitsOf(value), bits << 16);
      const bool nan = (bits & 0x7fff) > 0x7f80;
      EXPECT_EQ(Bfloat16::FromFloat(value).bits, nan ? (bits & 0x8000) | 0x7fc0 : bits);
    }
  }
}

// All float16 with 0, 1 and -1, whatever the thread does with subnormal numbers.
TEST(ReduceTest, Float16KeepsItsSubnormals) {
  for (const bool flush : {false, true}) {
    const FloatMode mode(flush);
    for (const Subnormals subnormals : {Subnormals::kKept, Subnormals::kFlushed}) {
      std::vector<uint16_t> all(0x7c00);
      std::vector<uint16_t> sums(all.size());
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      const std::vector<uint16_t> zeros(all.size());
      const std::vector<const char*> two = {reinterpret_cast<const char*>(all.data()),
                                            reinterpret_cast<const char*>(zeros.data())};
      for (const size_t members : {2, 3}) {
        std::vector<const char*> sources = two;
        sources.resize(members, sources[1]);
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
          Reduce(DType::kFloat16, op, sources, all.size(), reinterpret_cast<char*>(sums.data()),
                 nullptr, subnormals);
          EXPECT_EQ(sums, all);
        }
      }
    }
  }
}

template <typename T>
void ExpectSubnormals(DType dtype, T least, T one) {
  for (const bool flush : {false, true}) {
    const FloatMode mode(flush);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      const std::vector<T> leasts(100, least);
      const std::vector<T> others(100, op == ReduceOp::kMin ? one : T{});
      for (const Subnormals subnormals : {Subnormals::kKept, Subnormals::kFlushed}) {
        std::vector<T> result(100);
        Reduce(dtype, op,
               {reinterpret_cast<const char*>(leasts.data()),
                reinterpret_cast<const char*>(others.data())},
               result.size(), reinterpret_cast<char*>(result.data()), nullptr, subnormals);
        const std::vector<T> zeros(100);
        const std::vector<T>& expected = subnormals == Subnormals::kKept ? leasts : zeros;
        EXPECT_EQ(std::memcmp(result.data(), expected.data(), 100 * sizeof(T)), 0)
            << NameOf(op) << " of " << NameOf(dtype);
      }
    }
  }
}

TEST(ReduceTest, SubnormalsDoNotDependOnTheThread) {
  ExpectSubnormals(DType::kFloat32, std::numeric_limits<float>::denorm_min(), 1.0f);
  ExpectSubnormals(DType::kFloat64, std::numeric_limits<double>::denorm_min(), 1.0);
  ExpectSubnormals<uint16_t>(DType::kBfloat16, 1, 0x3f80);
}

TEST(HalfTest, Float16Rounds) {
  const auto bits = [](float value) { return Float16::FromFloat(value).bits; };
  EXPECT_EQ(Float16{0x3c00}.ToFloat(), 1.0f);
  EXPECT_EQ(Float16{0x0001}.ToFloat(), std::ldexp(1.0f, -24));
  EXPECT_EQ(bits(1.0f + std::ldexp(1.0f, -11)), 0x3c00);  // ties go to even
  EXPECT_EQ(bits(1.0f + 3 * std::ldexp(1.0f, -11)), 0x3c02);
  EXPECT_EQ(bits(65504.0f), 0x7bff);
  EXPECT_EQ(bits(65519.0f), 0x7bff);
  EXPECT_EQ(bits(65520.0f), 0x7c00);
  EXPECT_EQ(bits(1e30f), 0x7c00);
  EXPECT_EQ(bits(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(bits(std::ldexp(1.0f, -26)), 0);
  EXPECT_EQ(bits(std::ldexp(1.5f, -25)), 1);
  EXPECT_EQ(bits(-0.0f), 0x8000);
}

TEST(HalfTest, Bfloat16Rounds) {
  const auto bits = [](float value) { return Bfloat16::FromFloat(value).bits; };
  EXPECT_EQ(bits(1.0f), 0x3f80);
  EXPECT_EQ(bits(1.0f + std::ldexp(1.0f, -8)), 0x3f80);
  EXPECT_EQ(bits(1.0f + 3 * std::ldexp(1.0f, -8)), 0x3f82);
  EXPECT_EQ(bits(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_GT(bits(std::nanf("")) & 0x7fff, 0x7f80);
}

TEST(ReduceTest, Operations) {
  EXPECT_EQ(Combined<float>(DType::kFloat32, ReduceOp::kSum, {1, 2, 3}), 6);
  EXPECT_EQ(Combined<double>(DType::kFloat64, ReduceOp::kProd, {2, 3, 4, 5}), 120);
  EXPECT_EQ(Combined<int16_t>(DType::kInt16, ReduceOp::kMin, {3, -4}), -4);
  EXPECT_EQ(Combined<uint64_t>(DType::kUint64, ReduceOp::kMax, {3, ~uint64_t{0}, 4}), ~uint64_t{0});
  EXPECT_EQ(Combined<int32_t>(DType::kInt32, ReduceOp::kSum, {7}), 7);
  EXPECT_EQ(Combined<bool>(DType::kBool, ReduceOp::kSum, {true, true}), true);
  EXPECT_EQ(Combined<bool>(DType::kBool, ReduceOp::kProd, {true, false}), false);
}

TEST(ReduceTest, IntegersWrapAround) {
  EXPECT_EQ(Combined<int8_t>(DType::kInt8, ReduceOp::kSum, {100, 100}), -56);
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(Combined<int64_t>(DType::kInt64, ReduceOp::kSum, {kMax, 1}), -kMax - 1);
  EXPECT_EQ(Combined<int32_t>(DType::kInt32, ReduceOp::kProd, {1 << 30, 4}), 0);
  EXPECT_EQ(Combined<uint16_t>(DType::kUint16, ReduceOp::kProd, {65535, 65535}), 1);
}

TEST(ReduceTest, NanWinsMinimumAndMaximum) {
  const float nan = std::nanf("");
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(Combined<float>(DType::kFloat32, op, {nan, 1})));
    EXPECT_TRUE(std::isnan(Combined<float>(DType::kFloat32, op, {1, nan})));
    EXPECT_TRUE(std::isnan(Combined<float>(DType::kFloat32, op, {1, nan, 2})));
  }
}

TEST(ReduceTest, TypesOf16BitsAreRoundedOnce) {
  const uint16_t one = Float16::FromFloat(1).bits;
  const uint16_t tiny = Float16::FromFloat(std::ldexp(1.0f, -11)).bits;
  const uint16_t sum = Combined<uint16_t>(DType::kFloat16, ReduceOp::kSum, {one, tiny, tiny});
  EXPECT_EQ(Float16{sum}.ToFloat(), 1.0f + std::ldexp(1.0f, -10));
}

// A fused multiply-add rounds once, so it would give other bits than on processors without one.
TEST(ReduceTest, ComplexProductsAreRoundedTwice) {
  const float x = 1 + std::ldexp(1.0f, -20);
  const std::complex<float> value = {x, x};
  const DType dtype = DType::kComplex64;
  EXPECT_EQ(Combined(dtype, ReduceOp::kProd, {value, value}).real(), 0);
  EXPECT_EQ(Combined(dtype, ReduceOp::kProd, {value, value, {x, 0}}).real(), 0);
}

TEST(ReduceTest, TheOutputMayBeAnySource) {
  constexpr size_t kCount = 5000;
  for (size_t members = 1; members <= 4; ++members) {
    for (size_t same = 0; same < members; ++same) {
      std::vector<std::vector<float>> values(members, std::vector<float>(kCount, 2));
      std::vector<const char*> sources;
      for (const auto& each : values) sources.push_back(reinterpret_cast<const char*>(each.data()));
      Reduce(DType::kFloat32, ReduceOp::kSum, sources, kCount,
             reinterpret_cast<char*>(values[same].data()), nullptr);
      EXPECT_EQ(values[same], std::vector<float>(kCount, 2 * static_cast<float>(members)));
    }
  }
}

}  // namespace
}  // namespace rdma_transport::collectives
