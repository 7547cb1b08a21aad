// Authenticates the bootstrap's two messages if the job has a secret:
//
//   request:  fields, nonce A,  HMAC(secret, "request", service, fields, nonce A)
//   reply:    fields, nonce P,  HMAC(secret, "reply", service, nonce A, fields, nonce P)
//   the channel's key:          HMAC(secret, "channel", service, nonce A, nonce P)
//
// The requesting side signs with the first secret of its file; the replying side uses the secret
// that matches. A request alone may be a replay. The channel's key, which the fabric's first
// message needs (fabric/greeting.h), proves that the requesting side is present. See
// docs/threat_model.md.
//
// Without a secret, both messages have neither nonce nor MAC, and the key is empty.
#pragma once

#include <string>
#include <string_view>

#include "base/secret_file.h"
#include "base/status.h"
#include "protocol/bootstrap.h"

namespace rdma_transport {

// The service: a message for one service is invalid for another.
inline constexpr std::string_view kTaskService = "task";

// The requesting side of one bootstrap. Not thread-safe.
class AskingHandshake {
 public:
  // `file` must outlive the call to Sign().
  AskingHandshake(SecretFile* file, std::string_view service) : file_(file), service_(service) {}

  // Returns an error if a secret is configured and has never been readable.
  Status Sign(BootstrapRequest* request);
  // Returns PermissionDenied unless the reply comes from a task with the same secret. A refusal
  // needs no signature, because it causes no action: an attacker who can forge one can also drop
  // the call.
  Status Check(const BootstrapReply& reply);
  // For fabric::Terms; after Check().
  const std::string& channel_key() const { return channel_key_; }

 private:
  SecretFile* const file_;
  const std::string service_;
  std::string secret_;
  std::string nonce_;
  std::string channel_key_;
};

// The replying side of one bootstrap. Not thread-safe.
class AnsweringHandshake {
 public:
  AnsweringHandshake(SecretFile* file, std::string_view service) : file_(file), service_(service) {}

  // Returns PermissionDenied unless the request comes from a task with one of this task's secrets.
  // The message is for the peer: it says only which side has no secret, or that they differ.
  Status Check(const BootstrapRequest& request);
  // For fabric::Terms; after Check().
  const std::string& channel_key() const { return channel_key_; }
  // Signs the final reply. Must be the last call.
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
