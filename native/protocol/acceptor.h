// Answers the bootstrap requests of remote tasks.
#pragma once

#include <string>
#include <string_view>

#include "protocol/bootstrap.h"
#include "protocol/links.h"
#include "protocol/runtime.h"

namespace rdma_transport {

class AnsweringHandshake;

// Thread-safe. Must not outlive its arguments.
class Acceptor {
 public:
  Acceptor(const Identity& self, Runtime* runtime, Links* links)
      : self_(self), runtime_(runtime), links_(links) {}

  // Handles a peer's request and returns the encoded reply, which may be a refusal.
  std::string Answer(std::string_view request);

 private:
  // Sets `reply->channel` or `reply->use`, or returns why the link is refused and sets
  // `reply->again`.
  Status Accept(std::string_view request, AnsweringHandshake* handshake, BootstrapReply* reply);
  Status Confirm(const BootstrapRequest& request, BootstrapReply* reply);
  Status Connect(const BootstrapRequest& request, const std::string& channel_key,
                 BootstrapReply* reply);

  const Identity& self_;
  Runtime* const runtime_;
  Links* const links_;
};

}  // namespace rdma_transport
