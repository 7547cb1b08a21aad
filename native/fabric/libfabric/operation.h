// What this fabric knows of an operation that it has handed to the library.
#pragma once

#include <rdma/fabric.h>

#include <cstdint>
#include <memory>

namespace rdma_transport::fabric::libfabric {

class LibfabricChannel;

// Memory for one message. `data` has Domain::frame_bytes() bytes.
struct Frame {
  char* data = nullptr;
  void* descriptor = nullptr;  // of its registration, if the provider wants one
};

struct Operation {
  enum class Kind : uint8_t { kReceive, kMessage, kWrite, kRead };

  // Must be the first member: the library returns its address, and some providers use its bytes.
  fi_context2 context = {};
  Kind kind = Kind::kReceive;
  Frame frame;  // kReceive, kMessage
  // Null for kReceive, and for the domain's own. Keeps the channel until the operation has ended.
  std::shared_ptr<LibfabricChannel> channel;
  uint64_t transfer = 0;  // kWrite, kRead: what it is a piece of
  uint64_t sequence = 0;  // kWrite: its place among the writes of the channel
};

}  // namespace rdma_transport::fabric::libfabric
