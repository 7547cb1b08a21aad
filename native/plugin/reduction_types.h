// Connects TensorFlow's reductions to native/collectives: types, operations and parts of tensors.
#pragma once

#include "absl/status/status.h"
#include "collectives/round.h"
#include "collectives/types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {

// Returns Unimplemented for a type that TensorFlow's collectives do not reduce.
absl::Status Parse(tensorflow::DataType dtype, collectives::DType* parsed);
// Returns Unimplemented if `merge` is null or no operation that they reduce by.
absl::Status Parse(const tensorflow::OpKernel* merge, collectives::ReduceOp* parsed);

// Returns the elements of a flat tensor whose bytes are `range`, which shares its buffer.
tensorflow::Tensor SliceOf(const tensorflow::Tensor& flat, const collectives::Round& range);

}  // namespace rdma_transport
