#include "plugin/step_errors.h"

#include <cstring>

#include "absl/strings/cord.h"
#include "plugin/status_conversion.h"
#include "protocol/wire.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_util.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// Followed by the message, and by the payloads as gRPC carries them.
struct ErrorHeader {
  int32_t code = 0;
  uint32_t message_bytes = 0;
};

// Leaves room for the payloads.
constexpr size_t kMaxMessage = kMaxErrorLength / 2;

}  // namespace

std::string EncodeError(const absl::Status& status) {
  const absl::string_view message = status.message().substr(0, kMaxMessage);
  const ErrorHeader header = {status.raw_code(), static_cast<uint32_t>(message.size())};
  tf::distributed_runtime::GrpcPayloadContainer container;
  size_t size = sizeof(header) + header.message_bytes;
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    constexpr size_t kOverhead = 32;
    if (size + url.size() + payload.size() + kOverhead > kMaxErrorLength) return;
    (*container.mutable_payloads())[std::string(url)] = std::string(payload);
    size += url.size() + payload.size() + kOverhead;
  });
  std::string encoded(sizeof(header), 0);
  std::memcpy(&encoded[0], &header, sizeof(header));
  return encoded.append(message).append(container.SerializeAsString());
}

absl::Status DecodeError(absl::string_view error) {
  ErrorHeader header;
  if (error.size() < sizeof(header)) return absl::AbortedError("");
  std::memcpy(&header, error.data(), sizeof(header));
  error.remove_prefix(sizeof(header));
  if (header.code == 0 || header.message_bytes > error.size()) return absl::AbortedError("");
  absl::Status status(static_cast<absl::StatusCode>(header.code),
                      error.substr(0, header.message_bytes));
  tf::distributed_runtime::GrpcPayloadContainer container;
  container.ParseFromString(std::string(error.substr(header.message_bytes)));
  for (const auto& [url, payload] : container.payloads()) {
    status.SetPayload(url, absl::Cord(absl::string_view(payload)));
  }
  return status;
}

absl::Status ErrorOf(const Delivery& delivery, absl::string_view peer) {
  if (delivery.error.empty()) return ToTensorFlow(delivery.status, peer);
  return WithOrigin(DecodeError(delivery.error), peer);
}

}  // namespace rdma_transport
