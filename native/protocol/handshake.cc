#include "protocol/handshake.h"

#include <initializer_list>
#include <vector>

#include "base/clock.h"
#include "base/hmac_sha256.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/random.h"
#include "protocol/counters.h"

namespace rdma_transport {
namespace {

constexpr size_t kNonceBytes = 16;
constexpr size_t kMaxNameInLog = 128;
constexpr uint64_t kRefusalsLogged = 1;  // per interval
constexpr Nanos kLogInterval = 60 * kSecond;

std::string Mac(const std::string& secret, const char* what,
                std::initializer_list<std::string_view> parts) {
  std::string message;
  PutField(what, &message);
  for (const std::string_view part : parts) PutField(part, &message);
  return HmacSha256(secret, message);
}

std::string MacOf(const std::string& secret, const std::string& service,
                  const BootstrapRequest& request) {
  return Mac(secret, "request", {service, request.Fields()});
}

std::string MacOf(const std::string& secret, const std::string& service,
                  const std::string& request_nonce, const BootstrapReply& reply) {
  return Mac(secret, "reply", {service, request_nonce, reply.Fields()});
}

std::string KeyOf(const std::string& secret, const std::string& service,
                  const std::string& request_nonce, const std::string& reply_nonce) {
  return Mac(secret, "channel", {service, request_nonce, reply_nonce});
}

// Peers retry often, and each one logs its own refusal.
void LogRefusal(const std::string& line) {
  static auto* limiter = new LogLimiter(LogLevel::kWarning, kRefusalsLogged, kLogInterval);
  GlobalCounters().errors.Add("authentication");
  limiter->Log(line);
}

Status Denied(const std::string& message) { return Status(Code::kPermissionDenied, message); }

}  // namespace

Status AskingHandshake::Sign(BootstrapRequest* request) {
  std::vector<std::string> secrets;
  RDMA_RETURN_IF_ERROR(file_->Get(&secrets));
  if (secrets.empty()) return OkStatus();
  secret_ = secrets.front();
  nonce_ = RandomBytes(kNonceBytes);
  request->nonce = nonce_;
  request->mac = MacOf(secret_, service_, *request);
  return OkStatus();
}

Status AskingHandshake::Check(const BootstrapReply& reply) {
  if (secret_.empty() || (reply.channel.empty() && reply.use.empty())) return OkStatus();
  if (!EqualInConstantTime(reply.mac, MacOf(secret_, service_, nonce_, reply))) {
    GlobalCounters().errors.Add("authentication");
    return Denied("it does not prove that it has this task's secret (RDMA_TRANSPORT_SECRET_FILE)");
  }
  channel_key_ = KeyOf(secret_, service_, nonce_, reply.nonce);
  return OkStatus();
}

Status AnsweringHandshake::Check(const BootstrapRequest& request) {
  std::vector<std::string> secrets;
  const std::string peer = "refused peer " + Printable(request.from.task, kMaxNameInLog) + ": ";
  const Status read = file_->Get(&secrets);
  if (!read.ok()) {
    LogRefusal(peer + read.message());
    return Denied("it cannot read its own secret: see its log");
  }
  if (secrets.empty() && request.mac.empty()) return OkStatus();
  if (secrets.empty()) {
    LogRefusal(peer + "it has a secret, and this task has none: set RDMA_TRANSPORT_SECRET_FILE");
    return Denied("it has no secret: set RDMA_TRANSPORT_SECRET_FILE there");
  }
  if (request.mac.empty()) {
    LogRefusal(peer + "it has no secret: set RDMA_TRANSPORT_SECRET_FILE there");
    return Denied("it has a secret, and this task has none: set RDMA_TRANSPORT_SECRET_FILE");
  }
  for (const std::string& secret : secrets) {
    if (EqualInConstantTime(request.mac, MacOf(secret, service_, request))) secret_ = secret;
  }
  if (secret_.empty()) {
    LogRefusal(peer + "its secret differs: RDMA_TRANSPORT_SECRET_FILE must be the same there");
    return Denied("its secret differs: RDMA_TRANSPORT_SECRET_FILE must be the same there");
  }
  request_nonce_ = request.nonce;
  nonce_ = RandomBytes(kNonceBytes);
  channel_key_ = KeyOf(secret_, service_, request_nonce_, nonce_);
  return OkStatus();
}

void AnsweringHandshake::Sign(BootstrapReply* reply) const {
  if (secret_.empty()) return;
  reply->nonce = nonce_;
  reply->mac = MacOf(secret_, service_, request_nonce_, *reply);
}

}  // namespace rdma_transport
