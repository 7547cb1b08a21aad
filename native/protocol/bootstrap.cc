#include "protocol/bootstrap.h"

#include <cstring>

namespace rdma_transport {
namespace {

constexpr char kMagic[] = "rdma_transport";
// One may hold the addresses of a rank for all others: 2,000 of them, as JSON.
constexpr size_t kMaxField = 1 << 20;

template <typename T>
void PutNumber(T value, std::string* out) {
  PutField(std::string_view(reinterpret_cast<const char*>(&value), sizeof(value)), out);
}

// The fields with which both messages begin.
template <typename Message>
std::string Head(const Message& message) {
  std::string bytes;
  PutField(kMagic, &bytes);
  PutNumber(message.version, &bytes);
  PutField(message.from.task, &bytes);
  PutNumber(message.from.incarnation, &bytes);
  PutField(message.channel, &bytes);
  return bytes;
}

// Of a request, how its link may be shared.
std::string Sharing(const BootstrapRequest& request) {
  std::string bytes;
  PutField(request.link, &bytes);
  PutField(request.offer, &bytes);
  PutNumber(static_cast<uint8_t>(request.insist), &bytes);
  return bytes;
}

std::string Sharing(const BootstrapReply& reply) {
  std::string bytes;
  PutField(reply.use, &bytes);
  PutNumber(static_cast<uint8_t>(reply.use_up), &bytes);
  return bytes;
}

// The fields up to the nonce.
std::string Begin(const BootstrapRequest& request) {
  std::string bytes = Head(request);
  PutField(request.nonce, &bytes);
  return bytes;
}

std::string Begin(const BootstrapReply& reply) {
  std::string bytes = Head(reply);
  PutField(reply.refusal, &bytes);
  PutNumber(static_cast<uint8_t>(reply.again), &bytes);
  PutField(reply.nonce, &bytes);
  return bytes;
}

// The MAC is where earlier versions have it.
template <typename Message>
std::string WithMac(const Message& message) {
  std::string bytes = Begin(message);
  PutField(message.mac, &bytes);
  return bytes + Sharing(message);
}

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  std::string Get() {
    uint32_t length = 0;
    if (!ok_ || rest_.size() < sizeof(length)) return Fail();
    std::memcpy(&length, rest_.data(), sizeof(length));
    rest_.remove_prefix(sizeof(length));
    if (length > kMaxField || length > rest_.size()) return Fail();
    std::string field(rest_.substr(0, length));
    rest_.remove_prefix(length);
    return field;
  }

  template <typename T>
  T GetNumber() {
    const std::string field = Get();
    T value{};
    if (field.size() != sizeof(value)) {
      Fail();
    } else {
      std::memcpy(&value, field.data(), sizeof(value));
    }
    return value;
  }

  template <typename Message>
  Status GetHead(Message* message) {
    if (Get() != kMagic) return Status(Code::kInvalidArgument, "not a bootstrap message");
    message->version = GetNumber<uint32_t>();
    message->from.task = Get();
    message->from.incarnation = GetNumber<uint64_t>();
    message->channel = Get();
    return OkStatus();
  }

  bool AtEnd() const { return rest_.empty(); }
  // Fields that earlier versions do not send.
  template <typename Message>
  void GetAuthentication(Message* message) {
    if (AtEnd()) return;
    message->nonce = Get();
    message->mac = Get();
  }

  void GetSharing(BootstrapRequest* request) {
    if (AtEnd()) return;
    request->link = Get();
    request->offer = Get();
    request->insist = GetNumber<uint8_t>() != 0;
  }
  void GetSharing(BootstrapReply* reply) {
    if (AtEnd()) return;
    reply->use = Get();
    reply->use_up = GetNumber<uint8_t>() != 0;
  }

  // Later versions may add fields, so extra bytes are no error.
  Status Finish() const {
    return ok_ ? OkStatus() : Status(Code::kInvalidArgument, "a malformed bootstrap message");
  }

 private:
  std::string Fail() {
    ok_ = false;
    return std::string();
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace

void PutField(std::string_view field, std::string* out) {
  const auto length = static_cast<uint32_t>(field.size());
  out->append(reinterpret_cast<const char*>(&length), sizeof(length));
  out->append(field);
}

std::string BootstrapRequest::Fields() const { return Begin(*this) + Sharing(*this); }

std::string BootstrapRequest::Encode() const { return WithMac(*this); }

Status BootstrapRequest::Decode(std::string_view bytes, BootstrapRequest* request) {
  Reader reader(bytes);
  RDMA_RETURN_IF_ERROR(reader.GetHead(request));
  reader.GetAuthentication(request);
  reader.GetSharing(request);
  return reader.Finish();
}

std::string BootstrapReply::Fields() const { return Begin(*this) + Sharing(*this); }

std::string BootstrapReply::Encode() const { return WithMac(*this); }

Status BootstrapReply::Decode(std::string_view bytes, BootstrapReply* reply) {
  Reader reader(bytes);
  RDMA_RETURN_IF_ERROR(reader.GetHead(reply));
  reply->refusal = reader.Get();
  // Earlier versions do not send this. Their replies must still decode, so that a refusal is
  // reported.
  reply->again = !reader.AtEnd() && reader.GetNumber<uint8_t>() != 0;
  reader.GetAuthentication(reply);
  reader.GetSharing(reply);
  return reader.Finish();
}

}  // namespace rdma_transport
