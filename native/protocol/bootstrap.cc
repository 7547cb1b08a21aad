#include "protocol/bootstrap.h"

#include <cstring>

namespace rdma_transport {
namespace {

constexpr char kMagic[] = "rdma_transport";
constexpr size_t kMaxField = 4096;

template <typename T>
void PutNumber(T value, std::string* out) {
  PutField(std::string_view(reinterpret_cast<const char*>(&value), sizeof(value)), out);
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

  bool AtEnd() const { return rest_.empty(); }
  // Fields that earlier versions do not send.
  void GetAuthentication(std::string* nonce, std::string* mac) {
    if (AtEnd()) return;
    *nonce = Get();
    *mac = Get();
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

std::string BootstrapRequest::Fields() const {
  std::string bytes;
  PutField(kMagic, &bytes);
  PutNumber(version, &bytes);
  PutField(from.task, &bytes);
  PutNumber(from.incarnation, &bytes);
  PutField(channel, &bytes);
  PutField(nonce, &bytes);
  return bytes;
}

std::string BootstrapRequest::Encode() const {
  std::string bytes = Fields();
  PutField(mac, &bytes);
  return bytes;
}

Status BootstrapRequest::Decode(std::string_view bytes, BootstrapRequest* request) {
  Reader reader(bytes);
  if (reader.Get() != kMagic) return Status(Code::kInvalidArgument, "not a bootstrap message");
  request->version = reader.GetNumber<uint32_t>();
  request->from.task = reader.Get();
  request->from.incarnation = reader.GetNumber<uint64_t>();
  request->channel = reader.Get();
  reader.GetAuthentication(&request->nonce, &request->mac);
  return reader.Finish();
}

std::string BootstrapReply::Fields() const {
  std::string bytes;
  PutField(kMagic, &bytes);
  PutNumber(version, &bytes);
  PutField(from.task, &bytes);
  PutNumber(from.incarnation, &bytes);
  PutField(channel, &bytes);
  PutField(refusal, &bytes);
  PutNumber(static_cast<uint8_t>(again), &bytes);
  PutField(nonce, &bytes);
  return bytes;
}

std::string BootstrapReply::Encode() const {
  std::string bytes = Fields();
  PutField(mac, &bytes);
  return bytes;
}

Status BootstrapReply::Decode(std::string_view bytes, BootstrapReply* reply) {
  Reader reader(bytes);
  if (reader.Get() != kMagic) return Status(Code::kInvalidArgument, "not a bootstrap message");
  reply->version = reader.GetNumber<uint32_t>();
  reply->from.task = reader.Get();
  reply->from.incarnation = reader.GetNumber<uint64_t>();
  reply->channel = reader.Get();
  reply->refusal = reader.Get();
  // Earlier versions do not send this. Their replies must still decode, so that a refusal is
  // reported.
  reply->again = !reader.AtEnd() && reader.GetNumber<uint8_t>() != 0;
  reader.GetAuthentication(&reply->nonce, &reply->mac);
  return reader.Finish();
}

}  // namespace rdma_transport
