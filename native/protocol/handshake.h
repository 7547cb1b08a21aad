// The bootstrap's two messages, authenticated where the job has a secret:
//
//   request:  fields, nonce A,  HMAC(secret, "request", service, fields, nonce A)
//   reply:    fields, nonce P,  HMAC(secret, "reply", service, nonce A, fields, nonce P)
//   the channel's key:          HMAC(secret, "channel", service, nonce A, nonce P)
//
// The asking side signs with the first secret of its file, the asked side answers with the one that
// fits. The request alone may be a repetition of an old one: that the asking side is there now is
// proved by the channel's key, which the fabric's first message needs (fabric/greeting.h). See
// docs/threat_model.md.
//
// Without a secret both messages have neither nonce nor code, and the key is empty.
#pragma once

#include <string>
#include <string_view>

#include "base/secret_file.h"
#include "base/status.h"
#include "protocol/bootstrap.h"

namespace rdma_transport {

// What is asked: a message for one service is none for another.
inline constexpr std::string_view kTaskService = "task";

// The asking side of one bootstrap.
class AskingHandshake {
 public:
  // `file` must outlive the call of Sign().
  AskingHandshake(SecretFile* file, std::string_view service) : file_(file), service_(service) {}

  // Not OK: this process has a secret and could never read it.
  Status Sign(BootstrapRequest* request);
  // Whether the reply comes from a task with the same secret. PermissionDenied: no. A refusal needs
  // no signature, because nothing is done for it: whoever can forge one can as well drop the call.
  Status Check(const BootstrapReply& reply);
  // For Channel::Authenticate(); after Check().
  const std::string& channel_key() const { return channel_key_; }

 private:
  SecretFile* const file_;
  const std::string service_;
  std::string secret_;
  std::string nonce_;
  std::string channel_key_;
};

// The asked side of one bootstrap.
class AnsweringHandshake {
 public:
  AnsweringHandshake(SecretFile* file, std::string_view service) : file_(file), service_(service) {}

  // Whether the request comes from a task with one of this task's secrets. PermissionDenied: no,
  // and the message is for the peer: it says which side has no secret, or that they differ, nothing
  // else.
  Status Check(const BootstrapRequest& request);
  // For Channel::Authenticate(); after Check().
  const std::string& channel_key() const { return channel_key_; }
  // The last call: with the reply that leaves.
  void Sign(BootstrapReply* reply) const;

 private:
  SecretFile* const file_;
  const std::string service_;
  std::string secret_;
  std::string request_nonce_;
  std::string nonce_;
  std::string channel_key_;
};

}  // namespace rdma_transport
