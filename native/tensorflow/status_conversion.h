// The project's Status as TensorFlow's, and back.
#pragma once

#include "absl/status/status.h"
#include "base/status.h"

namespace rdma_transport {

inline absl::Status ToTensorFlow(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

inline Status FromTensorFlow(const absl::Status& status) {
  return Status(static_cast<Code>(status.code()), std::string(status.message()));
}

}  // namespace rdma_transport
