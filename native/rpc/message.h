// What a call and its reply are for those who use them; no word of how they travel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "protocol/owner_ref.h"

namespace rdma_transport::rpc {

// Bytes that a reply brings beside its head; large ones are written where the caller wants them.
struct Payload {
  const char* data = nullptr;
  size_t bytes = 0;
};

struct Reply {
  Status status;
  std::string head;  // the users' own
  std::vector<Payload> payloads;
  OwnerRef owner;  // keeps the payloads as they are
};

// A payload at the caller: memory of its own, aligned to 64 and writable, or a part of the reply.
struct Arrived {
  char* data = nullptr;
  size_t bytes = 0;
  size_t place = 0;  // in which it landed, from 1; 0: none
  OwnerRef owner;    // of what landed
};

struct Response {
  Status status;
  bool replied = false;  // the status is the peer's, or of what it replied
  std::string head;
  std::vector<Arrived> payloads;
  std::string text;  // in which those lie that did not land
};

// Answers one call; may block. Any number at once, each on a thread of its own.
using Handler = std::function<Reply(std::string_view request)>;

}  // namespace rdma_transport::rpc
