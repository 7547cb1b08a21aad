// What RPC clients and servers use. Everything here must outlive them.
#pragma once

#include <string>

#include "base/secret_file.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

namespace rdma_transport::rpc {

// The pointers are not owned.
struct Context {
  // Names in timelines: of this process ("tf.data worker host:4242"), and of what a reply contains.
  std::string name;
  std::string brings;
  fabric::Device* device;
  memory::Arena* arena;          // where the server stages payloads that its fabric cannot reach
  memory::Arena* receive_arena;  // where the client receives payloads
  const Settings* settings;
  SecretFile* secret_file;
};

}  // namespace rdma_transport::rpc
