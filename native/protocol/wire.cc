#include "protocol/wire.h"

namespace rdma_transport {
namespace {

constexpr char kZeros[8] = {};

size_t PaddingOf(size_t length) { return (8 - length % 8) % 8; }

Status Malformed(const char* what) {
  return Status(Code::kDataLoss, std::string("a malformed notification: ") + what);
}

iovec Part(const void* data, size_t length) { return {const_cast<void*>(data), length}; }

}  // namespace

MessageType TypeOf(const char* data, size_t length) {
  return length == 0 ? MessageType{} : static_cast<MessageType>(data[0]);
}

Status ParseTensor(const char* data, size_t length, TensorMessage* message) {
  TensorHeader& header = message->header;
  if (length < sizeof(header)) return Malformed("shorter than its header");
  std::memcpy(&header, data, sizeof(header));
  if (header.rank > kMaxRank) return Malformed("too many dimensions");
  if (header.key_length > kMaxKeyLength) return Malformed("a key too long");
  size_t at = sizeof(header);
  const size_t dims_length = header.rank * sizeof(int64_t);
  const size_t key_length = header.key_length;
  if (length - at < dims_length + key_length + PaddingOf(key_length)) {
    return Malformed("shorter than its parts");
  }
  message->dims.resize(header.rank);
  if (dims_length > 0) std::memcpy(message->dims.data(), data + at, dims_length);
  for (int64_t dim : message->dims) {
    if (dim < 0) return Malformed("a negative dimension");
  }
  at += dims_length;
  message->key.assign(data + at, key_length);
  at += key_length + PaddingOf(key_length);
  message->payload = data + at;
  const size_t payload = header.type == MessageType::kInline ? header.bytes : 0;
  if (length - at != payload) return Malformed("a payload of another length than announced");
  return OkStatus();
}

Status ParseAbort(const char* data, size_t length, AbortMessage* message, std::string_view* error) {
  if (length < sizeof(*message)) return Malformed("shorter than its header");
  std::memcpy(message, data, sizeof(*message));
  const size_t stated = message->error_length;
  if (stated > kMaxErrorLength || length != sizeof(*message) + stated + PaddingOf(stated)) {
    return Malformed("an error of another length than announced");
  }
  *error = std::string_view(data + sizeof(*message), stated);
  return OkStatus();
}

Status ParseCall(const char* data, size_t length, CallMessage* message, std::string_view* body) {
  if (length < sizeof(*message)) return Malformed("shorter than its header");
  std::memcpy(message, data, sizeof(*message));
  const size_t stated = message->length;
  if (stated > kMaxCallLength || length != sizeof(*message) + stated + PaddingOf(stated)) {
    return Malformed("a call of another length than announced");
  }
  *body = std::string_view(data + sizeof(*message), stated);
  return OkStatus();
}

Status ParseStatic(const char* data, size_t length, StaticMessage* message,
                   std::string_view* suffix, uint32_t* checksum) {
  if (length < sizeof(*message)) return Malformed("shorter than its header");
  std::memcpy(message, data, sizeof(*message));
  const size_t suffix_length = message->suffix_length;
  const bool checked = (message->flags & kChecked) != 0;
  const size_t end = sizeof(*message) + suffix_length + PaddingOf(suffix_length);
  if (suffix_length > kMaxKeyLength || length != end + (checked ? sizeof(StaticChecksum) : 0)) {
    return Malformed("a key suffix of another length than announced");
  }
  if (checked) std::memcpy(checksum, data + end, sizeof(*checksum));
  const bool odd = (message->flags & kOwnSuffix) != 0;
  *suffix = odd ? std::string_view(data + sizeof(*message), suffix_length) : kUsualSuffix;
  return OkStatus();
}

AbortFrame::AbortFrame(int64_t step, uint32_t generation, uint32_t peer_generation,
                       std::string_view error) {
  error = error.substr(0, kMaxErrorLength);
  message_.type = MessageType::kAbort;
  message_.error_length = static_cast<uint32_t>(error.size());
  message_.step = step;
  message_.generation = generation;
  message_.peer_generation = peer_generation;
  parts_[0] = Part(&message_, sizeof(message_));
  parts_[1] = Part(error.data(), error.size());
  parts_[2] = Part(kZeros, PaddingOf(error.size()));
}

CallFrame::CallFrame(const CallMessage& message, std::string_view body) : message_(message) {
  message_.length = static_cast<uint32_t>(body.size());
  parts_[0] = Part(&message_, sizeof(message_));
  parts_[1] = Part(body.data(), body.size());
  parts_[2] = Part(kZeros, PaddingOf(body.size()));
}

TensorFrame::TensorFrame(TensorHeader* header, const int64_t* dims, int rank, std::string_view key,
                         const char* payload, size_t payload_length) {
  header->rank = static_cast<uint8_t>(rank);
  header->key_length = static_cast<uint32_t>(key.size());
  parts_[0] = Part(header, sizeof(*header));
  parts_[1] = Part(dims, static_cast<size_t>(rank) * sizeof(int64_t));
  parts_[2] = Part(key.data(), key.size());
  parts_[3] = Part(kZeros, PaddingOf(key.size()));
  parts_[4] = Part(payload, payload_length);
}

}  // namespace rdma_transport
