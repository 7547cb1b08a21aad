#include "collectives/scale.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "base/float_mode.h"
#include "collectives/half.h"
#include "collectives/independent.h"

namespace rdma_transport::collectives {
namespace {

template <typename T>
T ProductOf(T value, double factor) {
  const double product = static_cast<double>(value) * factor;
  if (!(product == product)) return 0;
  // The first number above the range, which double has exactly.
  const double end = static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2;
  if (product >= end) return std::numeric_limits<T>::max();
  if (product <= static_cast<double>(std::numeric_limits<T>::min())) {
    return std::numeric_limits<T>::min();
  }
  return static_cast<T>(product);
}

template <typename T>
void ScaleIntegers(const Scale& scale, const char* in, char* out, size_t count) {
  const T* const from = reinterpret_cast<const T*>(in);
  T* const to = reinterpret_cast<T*>(out);
  for (size_t i = 0; i < count; ++i) {
    T value = from[i];
    if constexpr (std::is_signed_v<T>) {
      value = static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(scale.divisor));
    } else {
      value = static_cast<T>(static_cast<uint64_t>(value) / scale.divisor);
    }
    to[i] = scale.factor == 1.0 ? value : ProductOf(value, scale.factor);
  }
}

// Calls `function(in[i])` for all elements. Separate loops where the arrays are the same: compilers
// vectorize both.
template <typename T, typename Function>
void ForEach(const char* in, char* out, size_t count, Function function) {
  const T* const from = reinterpret_cast<const T*>(in);
  T* const to = reinterpret_cast<T*>(out);
  if (in == out) {
    for (size_t i = 0; i < count; ++i) to[i] = function(to[i]);
    return;
  }
  RDMA_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < count; ++i) to[i] = function(from[i]);
}

template <typename T>
void ScaleFloats(const Scale& scale, const char* in, char* out, size_t count) {
  const T divisor = static_cast<T>(scale.divisor);
  const T factor = static_cast<T>(scale.factor);
  if (scale.divisor == 1) {
    ForEach<T>(in, out, count, [=](T value) { return value * factor; });
  } else if (scale.factor == 1.0) {
    ForEach<T>(in, out, count, [=](T value) { return value / divisor; });
  } else {
    ForEach<T>(in, out, count, [=](T value) { return value / divisor * factor; });
  }
}

template <typename T>
void ScaleHalves(const Scale& scale, const char* in, char* out, size_t count) {
  const auto divisor = static_cast<float>(scale.divisor);
  const auto factor = static_cast<float>(scale.factor);
  ForEach<T>(in, out, count,
             [=](T value) { return T::FromFloat(value.ToFloat() / divisor * factor); });
}

}  // namespace

void ScaleArray(DType dtype, const Scale& scale, const char* in, char* out, size_t count) {
  if (scale.none() || dtype == DType::kBool) {
    if (in != out && count > 0) std::memcpy(out, in, count * SizeOf(dtype));
    return;
  }
  const FloatMode mode(false);
  switch (dtype) {
    case DType::kBool:
      return;
    case DType::kInt8:
      return ScaleIntegers<int8_t>(scale, in, out, count);
    case DType::kInt16:
      return ScaleIntegers<int16_t>(scale, in, out, count);
    case DType::kInt32:
      return ScaleIntegers<int32_t>(scale, in, out, count);
    case DType::kInt64:
      return ScaleIntegers<int64_t>(scale, in, out, count);
    case DType::kUint8:
      return ScaleIntegers<uint8_t>(scale, in, out, count);
    case DType::kUint16:
      return ScaleIntegers<uint16_t>(scale, in, out, count);
    case DType::kUint32:
      return ScaleIntegers<uint32_t>(scale, in, out, count);
    case DType::kUint64:
      return ScaleIntegers<uint64_t>(scale, in, out, count);
    case DType::kFloat16:
      return ScaleHalves<Float16>(scale, in, out, count);
    case DType::kBfloat16:
      return ScaleHalves<Bfloat16>(scale, in, out, count);
    case DType::kFloat32:
      return ScaleFloats<float>(scale, in, out, count);
    case DType::kFloat64:
      return ScaleFloats<double>(scale, in, out, count);
    case DType::kComplex64:
      return ScaleFloats<float>(scale, in, out, count * 2);
    case DType::kComplex128:
      return ScaleFloats<double>(scale, in, out, count * 2);
  }
}

}  // namespace rdma_transport::collectives
