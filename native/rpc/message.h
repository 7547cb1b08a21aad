// A call and its reply as users see them, independent of how they travel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/owner_ref.h"
#include "base/status.h"

namespace rdma_transport::rpc {

// Bytes that a reply carries beside its head. Large payloads are written directly into the client's
// memory.
struct Payload {
  const char* data = nullptr;
  size_t bytes = 0;
};

// What a handler returns. If `status` is not OK, the rest is empty.
struct Reply {
  Status status;
  std::string head;  // opaque to this layer
  std::vector<Payload> payloads;
  OwnerRef owner;  // keeps the payloads alive and unchanged
};

// A payload as received: in memory of its own, aligned to 64 bytes and writable, or in the reply's
// text.
struct Arrived {
  char* data = nullptr;
  size_t bytes = 0;
  // The receive buffer it was written to, counted from 1, or 0 if it is in the text.
  size_t place = 0;
  OwnerRef owner;  // of a payload in a receive buffer
};

// What a call returns. Payloads without an owner are valid as long as this object.
struct Response {
  Status status;
  bool replied = false;  // `status` is the peer's, or about its reply
  std::string head;
  std::vector<Arrived> payloads;
  std::string text;  // contains the payloads without a receive buffer
};

// Handles one call. May block. Called concurrently, each call on its own thread.
using Handler = std::function<Reply(std::string_view request)>;

}  // namespace rdma_transport::rpc
