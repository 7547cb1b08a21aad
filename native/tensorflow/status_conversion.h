// The project's Status as TensorFlow's, and back.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/status.h"

namespace rdma_transport {

inline absl::Status ToTensorFlow(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

// Part of the line that gRPC adds to the errors of its calls to `peer`, a task. By it TensorFlow's
// ClusterCoordinator tells the loss of a parameter server, which it reports, from that of a worker,
// which it waits for.
inline std::string OriginLine(std::string_view peer) {
  return std::string("GRPC error information from remote target ").append(peer);
}

// The same for an error about `peer`, with that line if the peer is lost.
inline absl::Status ToTensorFlow(const Status& status, std::string_view peer) {
  if (status.code() != Code::kUnavailable) return ToTensorFlow(status);
  const std::string line = OriginLine(peer);
  if (status.message().find(line) != std::string::npos) return ToTensorFlow(status);
  return absl::UnavailableError(status.message() + "\nAdditional " + line +
                                ": none, it is of the fabric");
}

inline Status FromTensorFlow(const absl::Status& status) {
  return Status(static_cast<Code>(status.code()), std::string(status.message()));
}

}  // namespace rdma_transport
