#include "collectives/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "base/float_mode.h"
#include "collectives/half.h"
#include "collectives/independent.h"

namespace rdma_transport::collectives {
namespace {

// Elements that are combined at a time, so that intermediate results stay in the L1 cache.
constexpr size_t kBlock = 1024;

template <typename T>
struct Complex {
  T re;
  T im;
};

struct Sum {
  static constexpr bool kChooses = false;  // one of the operands
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    } else {
      return a + b;
    }
  }
  template <typename T>
  static Complex<T> Of(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
  }
  static bool Of(bool a, bool b) { return a | b; }
};

struct Prod {
  static constexpr bool kChooses = false;
  template <typename T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T> && sizeof(T) == 8) {
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
    } else {
      return a * b;
    }
  }
  template <typename T>
  static Complex<T> Of(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  }
  static bool Of(bool a, bool b) { return a & b; }
};

struct Min {
  static constexpr bool kChooses = true;
  template <typename T>
  static T Of(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
  static bool Of(bool a, bool b) { return a & b; }
};

struct Max {
  static constexpr bool kChooses = true;
  template <typename T>
  static T Of(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
  static bool Of(bool a, bool b) { return a | b; }
};

// The zero of the same sign for a subnormal number.
template <typename T>
T Flushed(T value) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr Bits kMagnitude = ~Bits{0} >> 1;
  constexpr Bits kExponent = kMagnitude & (~Bits{0} << (std::numeric_limits<T>::digits - 1));
  Bits bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits &= (bits & kExponent) == 0 ? ~kMagnitude : ~Bits{0};
  std::memcpy(&value, &bits, sizeof(bits));
  return value;
}

// Min or Max where the processor flushes subnormal numbers: it does so in sums and products, but
// what is chosen was not computed.
template <typename Op>
struct Flushing {
  static constexpr bool kChooses = true;
  template <typename T>
  static T Of(T a, T b) {
    return Flushed(Op::Of(a, b));
  }
};

// Intermediate results of types of 16 bits are float.
template <typename T>
using Wide =
    std::conditional_t<std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>, float, T>;

template <typename T>
Wide<T> Widen(T value) {
  if constexpr (std::is_same_v<Wide<T>, T>) {
    return value;
  } else {
    return value.ToFloat();
  }
}

template <typename T, typename Op>
T Narrow(Wide<T> value) {
  if constexpr (std::is_same_v<Wide<T>, T>) {
    return value;
  } else if constexpr (std::is_same_v<T, Bfloat16> && Op::kChooses) {
    return {static_cast<uint16_t>(BitsOf(value) >> 16)};  // NaN keeps its payload
  } else {
    return T::FromFloat(value);
  }
}

// `out` may be `a` or `b`: no iteration depends on another.
template <typename T, typename Op>
void Two(const T* a, const T* b, T* out, size_t count) {
  RDMA_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < count; ++i) out[i] = Narrow<T, Op>(Op::Of(Widen(a[i]), Widen(b[i])));
}

template <typename T, typename Op>
void Many(const std::vector<const char*>& sources, size_t first, T* out, size_t count) {
  Wide<T> result[kBlock];
  const auto source = [&](size_t k) { return reinterpret_cast<const T*>(sources[k]) + first; };
  const T* const a = source(0);
  const T* const b = source(1);
  for (size_t i = 0; i < count; ++i) result[i] = Op::Of(Widen(a[i]), Widen(b[i]));
  for (size_t k = 2; k + 1 < sources.size(); ++k) {
    const T* const next = source(k);
    for (size_t i = 0; i < count; ++i) result[i] = Op::Of(result[i], Widen(next[i]));
  }
  const T* const last = source(sources.size() - 1);
  RDMA_INDEPENDENT_ITERATIONS
  for (size_t i = 0; i < count; ++i) out[i] = Narrow<T, Op>(Op::Of(result[i], Widen(last[i])));
}

template <typename T, typename Op>
void ReduceAs(const std::vector<const char*>& sources, size_t count, char* out, char* copy) {
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t n = std::min(kBlock, count - first);
    T* const to = reinterpret_cast<T*>(out) + first;
    if (sources.size() == 1) {
      std::memmove(to, reinterpret_cast<const T*>(sources[0]) + first, n * sizeof(T));
    } else if (sources.size() == 2) {
      Two<T, Op>(reinterpret_cast<const T*>(sources[0]) + first,
                 reinterpret_cast<const T*>(sources[1]) + first, to, n);
    } else {
      Many<T, Op>(sources, first, to, n);
    }
    if (copy != nullptr) std::memcpy(copy + first * sizeof(T), to, n * sizeof(T));
  }
}

template <typename T, typename Op>
void Choose(const std::vector<const char*>& sources, size_t count, char* out, char* copy,
            Subnormals subnormals) {
  if constexpr (std::is_floating_point_v<Wide<T>> && !std::is_same_v<T, Float16>) {
    if (subnormals == Subnormals::kFlushed) {
      return ReduceAs<T, Flushing<Op>>(sources, count, out, copy);
    }
  }
  if constexpr (std::is_arithmetic_v<Wide<T>>) ReduceAs<T, Op>(sources, count, out, copy);
}

template <typename T>
void ReduceBy(ReduceOp op, const std::vector<const char*>& sources, size_t count, char* out,
              char* copy, Subnormals subnormals) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceAs<T, Sum>(sources, count, out, copy);
    case ReduceOp::kProd:
      return ReduceAs<T, Prod>(sources, count, out, copy);
    case ReduceOp::kMin:
      return Choose<T, Min>(sources, count, out, copy, subnormals);
    case ReduceOp::kMax:
      return Choose<T, Max>(sources, count, out, copy, subnormals);
  }
}

}  // namespace

Status CheckReduction(DType dtype, ReduceOp op) {
  const bool complex = dtype == DType::kComplex64 || dtype == DType::kComplex128;
  if (!complex || op == ReduceOp::kSum || op == ReduceOp::kProd) return OkStatus();
  return Status(Code::kInvalidArgument, std::string(NameOf(op)) + " of " + NameOf(dtype) +
                                            ": complex numbers have no order; use sum or prod");
}

void Reduce(DType dtype, ReduceOp op, const std::vector<const char*>& sources, size_t count,
            char* out, char* copy, Subnormals subnormals) {
  const FloatMode mode(subnormals == Subnormals::kFlushed);
  switch (dtype) {
    case DType::kBool:
      return ReduceBy<bool>(op, sources, count, out, copy, subnormals);
    case DType::kInt8:
      return ReduceBy<int8_t>(op, sources, count, out, copy, subnormals);
    case DType::kInt16:
      return ReduceBy<int16_t>(op, sources, count, out, copy, subnormals);
    case DType::kInt32:
      return ReduceBy<int32_t>(op, sources, count, out, copy, subnormals);
    case DType::kInt64:
      return ReduceBy<int64_t>(op, sources, count, out, copy, subnormals);
    case DType::kUint8:
      return ReduceBy<uint8_t>(op, sources, count, out, copy, subnormals);
    case DType::kUint16:
      return ReduceBy<uint16_t>(op, sources, count, out, copy, subnormals);
    case DType::kUint32:
      return ReduceBy<uint32_t>(op, sources, count, out, copy, subnormals);
    case DType::kUint64:
      return ReduceBy<uint64_t>(op, sources, count, out, copy, subnormals);
    case DType::kFloat16:
      return ReduceBy<Float16>(op, sources, count, out, copy, subnormals);
    case DType::kBfloat16:
      return ReduceBy<Bfloat16>(op, sources, count, out, copy, subnormals);
    case DType::kFloat32:
      return ReduceBy<float>(op, sources, count, out, copy, subnormals);
    case DType::kFloat64:
      return ReduceBy<double>(op, sources, count, out, copy, subnormals);
    case DType::kComplex64:
      return ReduceBy<Complex<float>>(op, sources, count, out, copy, subnormals);
    case DType::kComplex128:
      return ReduceBy<Complex<double>>(op, sources, count, out, copy, subnormals);
  }
}

}  // namespace rdma_transport::collectives
