// Converts the project's Status to TensorFlow's, and back.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "base/status.h"

namespace rdma_transport {

inline absl::Status ToTensorFlow(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

// Adds the line that gRPC adds to errors of its calls to the task `peer`. TensorFlow's
// ClusterCoordinator uses this line to distinguish the loss of a parameter server, which it
// reports, from that of a worker, for which it waits.
inline absl::Status WithOrigin(const absl::Status& status, std::string_view peer) {
  const std::string line = std::string("GRPC error information from remote target ").append(peer);
  if (status.message().find(line) != std::string_view::npos) return status;
  absl::Status located(status.code(), std::string(status.message()) + "\nAdditional " + line +
                                          ": none, it is of the fabric");
  status.ForEachPayload(
      [&](std::string_view url, const absl::Cord& payload) { located.SetPayload(url, payload); });
  return located;
}

// Converts an error about `peer`, with that line if the peer is lost.
inline absl::Status ToTensorFlow(const Status& status, std::string_view peer) {
  const absl::Status converted = ToTensorFlow(status);
  return status.code() == Code::kUnavailable ? WithOrigin(converted, peer) : converted;
}

inline Status FromTensorFlow(const absl::Status& status) {
  return Status(static_cast<Code>(status.code()), std::string(status.message()));
}

}  // namespace rdma_transport
