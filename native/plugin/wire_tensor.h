// What a peer says of a tensor, checked. TensorFlow ends the process for a type or a shape of which
// it cannot make a tensor, so all that comes from a peer passes here first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/tensor_bytes.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {

struct WireTensor {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::TensorShape shape;
};

// Returns DataLoss if there is no tensor of plain bytes with this type, these dimensions and
// exactly this length. `what` names it in the error.
inline absl::Status CheckWireTensor(uint32_t type, const std::vector<int64_t>& dims, uint64_t bytes,
                                    absl::string_view what, WireTensor* tensor) {
  namespace tf = tensorflow;
  const auto dtype = static_cast<tf::DataType>(type);
  // TensorFlow has types without a size, of which there are no tensors.
  const bool plain = tf::DataType_IsValid(static_cast<int>(type)) &&
                     tf::DataTypeCanUseMemcpy(dtype) && tf::DataTypeSize(dtype) > 0;
  if (!plain || !HasBytes(dims, tf::DataTypeSize(dtype), bytes) ||
      !tf::TensorShape::BuildTensorShape(dims, &tensor->shape).ok()) {
    return absl::DataLossError(
        "a tensor whose type, shape and length contradict each other, or are unknown here: " +
        std::string(what));
  }
  tensor->dtype = dtype;
  return absl::OkStatus();
}

}  // namespace rdma_transport
