// The element types and the operations of collectives.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rdma_transport::collectives {

// The type of an array's elements. Members compare the numbers, so they must not change.
enum class DType : uint8_t {
  kBool = 0,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
constexpr int kDTypes = 15;

// How elements are combined. Of NaN and a number, kMin and kMax give NaN, as NumPy does. Of bool,
// kSum and kMax are "or", kProd and kMin are "and". Integers wrap around.
enum class ReduceOp : uint8_t { kSum = 0, kProd, kMin, kMax };

enum class Collective : uint8_t {
  kBarrier = 0,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kGather,
  kScatter,
  kReduce,
  kExchange,
  kInvalid,  // announces to the other members that this one's arguments are invalid
};

// Returns the bytes of one element.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kInt8:
    case DType::kUint8:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kFloat16:
    case DType::kBfloat16:
      return 2;
    case DType::kInt32:
    case DType::kUint32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kUint64:
    case DType::kFloat64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
  }
  return 1;
}

// The names are literals, as NumPy spells them; "unknown" for a number that is no enumerator.
const char* NameOf(DType dtype);
const char* NameOf(ReduceOp op);
const char* NameOf(Collective collective);

}  // namespace rdma_transport::collectives
