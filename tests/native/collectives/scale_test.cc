#include "collectives/scale.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "collectives/half.h"

namespace rdma_transport::collectives {
namespace {

template <typename T>
std::vector<T> Scaled(DType dtype, const Scale& scale, std::vector<T> values) {
  std::vector<T> out(values.size());
  ScaleArray(dtype, scale, reinterpret_cast<const char*>(values.data()),
             reinterpret_cast<char*>(out.data()), values.size());
  ScaleArray(dtype, scale, reinterpret_cast<const char*>(values.data()),
             reinterpret_cast<char*>(values.data()), values.size());
  EXPECT_EQ(values.size(), out.size());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(values[i], out[i]) << "in place";
  return out;
}

TEST(ScaleTest, QuotientsOfIntegersAreRoundedToZero) {
  EXPECT_EQ(Scaled<int8_t>(DType::kInt8, {3, 1.0}, {-128, -4, -2, 2, 4, 127}),
            (std::vector<int8_t>{-42, -1, 0, 0, 1, 42}));
  EXPECT_EQ(Scaled<int8_t>(DType::kInt8, {300, 1.0}, {-128, 127}), (std::vector<int8_t>{0, 0}));
  EXPECT_EQ(Scaled<uint64_t>(DType::kUint64, {2, 1.0}, {~uint64_t{0}, 5}),
            (std::vector<uint64_t>{~uint64_t{0} / 2, 2}));
}

TEST(ScaleTest, ProductsOfIntegersStayInRange) {
  const int64_t high = std::numeric_limits<int64_t>::max();
  const int64_t low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(Scaled<int64_t>(DType::kInt64, {1, 1e30}, {1, -1, 0}),
            (std::vector<int64_t>{high, low, 0}));
  EXPECT_EQ(Scaled<uint8_t>(DType::kUint8, {1, 1.5}, {0, 3, 255}),
            (std::vector<uint8_t>{0, 4, 255}));
  EXPECT_EQ(Scaled<int32_t>(DType::kInt32, {1, std::numeric_limits<double>::quiet_NaN()}, {7}),
            (std::vector<int32_t>{0}));
}

TEST(ScaleTest, AveragesOfFloatsAreDivisions) {
  EXPECT_EQ(Scaled<float>(DType::kFloat32, {3, 1.0}, {9, 1}), (std::vector<float>{3, 1.0F / 3}));
  EXPECT_EQ(Scaled<double>(DType::kFloat64, {5, 2.0}, {35}), (std::vector<double>{14}));
  std::vector<Float16> halves = {Float16::FromFloat(9), Float16::FromFloat(1)};
  ScaleArray(DType::kFloat16, {3, 1.0}, reinterpret_cast<const char*>(halves.data()),
             reinterpret_cast<char*>(halves.data()), halves.size());
  EXPECT_EQ(halves[0].ToFloat(), 3);
  EXPECT_EQ(halves[1].bits, Float16::FromFloat(1.0F / 3).bits);
}

TEST(ScaleTest, BoolStaysAsItIs) {
  EXPECT_EQ(Scaled<uint8_t>(DType::kBool, {3, 0.5}, {0, 1}), (std::vector<uint8_t>{0, 1}));
}

}  // namespace
}  // namespace rdma_transport::collectives
