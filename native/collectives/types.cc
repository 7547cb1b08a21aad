#include "collectives/types.h"

namespace rdma_transport::collectives {

const char* NameOf(DType dtype) {
  static constexpr const char* kNames[kDTypes] = {
      "bool",   "int8",    "int16",    "int32",   "int64",   "uint8",     "uint16",    "uint32",
      "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};
  const auto number = static_cast<size_t>(dtype);
  return number < kDTypes ? kNames[number] : "unknown";
}

const char* NameOf(ReduceOp op) {
  static constexpr const char* kNames[] = {"sum", "prod", "min", "max"};
  const auto number = static_cast<size_t>(op);
  return number < 4 ? kNames[number] : "unknown";
}

const char* NameOf(Collective collective) {
  static constexpr const char* kNames[] = {"barrier",
                                           "all_reduce",
                                           "reduce_scatter",
                                           "all_gather",
                                           "broadcast",
                                           "all_to_all",
                                           "gather",
                                           "scatter",
                                           "reduce",
                                           "exchange",
                                           "a collective with invalid arguments"};
  const auto number = static_cast<size_t>(collective);
  return number < 11 ? kNames[number] : "unknown";
}

}  // namespace rdma_transport::collectives
