#include "plugin/step_errors.h"

#include "absl/strings/cord.h"
#include "plugin/status_conversion.h"
#include "protocol/wire.h"
#include "tensorflow/core/protobuf/status.pb.h"

namespace rdma_transport {
namespace {

// Leaves room for the payloads.
constexpr size_t kMaxMessage = kMaxErrorLength / 2;

absl::Status Decode(const std::string& error) {
  tensorflow::StatusProto proto;
  if (!proto.ParseFromString(error) || proto.code() == 0) return absl::AbortedError("");
  absl::Status status(static_cast<absl::StatusCode>(proto.code()), proto.message());
  for (const auto& [url, payload] : proto.payload()) status.SetPayload(url, absl::Cord(payload));
  return status;
}

}  // namespace

std::string EncodeError(const absl::Status& status) {
  tensorflow::StatusProto proto;
  proto.set_code(static_cast<tensorflow::error::Code>(status.code()));
  proto.set_message(std::string(status.message().substr(0, kMaxMessage)));
  size_t size = proto.ByteSizeLong();
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    constexpr size_t kOverhead = 32;
    if (size + url.size() + payload.size() + kOverhead > kMaxErrorLength) return;
    (*proto.mutable_payload())[std::string(url)] = std::string(payload);
    size += url.size() + payload.size() + kOverhead;
  });
  return proto.SerializeAsString();
}

absl::Status ErrorOf(const Delivery& delivery, absl::string_view peer) {
  if (delivery.error.empty()) return ToTensorFlow(delivery.status, peer);
  return WithOrigin(Decode(delivery.error), peer);
}

}  // namespace rdma_transport
