// Encodes the error of an aborted step for other tasks: TensorFlow's status with its payloads,
// which show for example which errors are derived from others.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "protocol/tensor.h"

namespace rdma_transport {

// For Endpoint::AbortStep().
std::string EncodeError(const absl::Status& status);

// Returns the status that EncodeError() encoded, or Aborted if the bytes are malformed.
absl::Status DecodeError(absl::string_view encoded);

// Returns the error of `delivery`, which must have one, for the step. `peer` is the task that it
// concerns.
absl::Status ErrorOf(const Delivery& delivery, absl::string_view peer);

}  // namespace rdma_transport
