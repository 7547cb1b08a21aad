// Errors for graphs that cannot be analyzed.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/status.h"

namespace rdma_transport::analyzer {

inline Status Invalid(const std::string& sentence) {
  return Status(Code::kInvalidArgument, sentence);
}

// The error for `what`, which TensorFlow rejected. Keeps the first line of its message.
inline Status Refused(const std::string& what, const absl::Status& status) {
  const std::string message(status.message());
  return Invalid(what + ": " + message.substr(0, message.find('\n')));
}

}  // namespace rdma_transport::analyzer
