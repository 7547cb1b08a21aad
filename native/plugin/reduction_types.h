// Converts the types and the operations of TensorFlow's reductions to those of native/collectives.
#pragma once

#include "absl/status/status.h"
#include "collectives/types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {

// Returns Unimplemented for a type that TensorFlow's collectives do not reduce.
absl::Status Parse(tensorflow::DataType dtype, collectives::DType* parsed);
// Returns Unimplemented if `merge` is null or no operation that they reduce by.
absl::Status Parse(const tensorflow::OpKernel* merge, collectives::ReduceOp* parsed);

}  // namespace rdma_transport
