// The error of an aborted step on its way to another task: TensorFlow's status with its payloads
// (they say, for one, which errors are only derived from others), as a serialized StatusProto.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "protocol/tensor.h"

namespace rdma_transport {

// For Endpoint::AbortStep().
std::string EncodeError(const absl::Status& status);

// The error of `delivery`, which has one, as the step shall see it; `peer` is the task that it
// concerns.
absl::Status ErrorOf(const Delivery& delivery, absl::string_view peer);

}  // namespace rdma_transport
