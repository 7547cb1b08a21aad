// What exchanges work with; all outlive them.
#pragma once

#include <string>

#include "base/secret_file.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "memory/arena.h"

namespace rdma_transport::rpc {

struct Context {
  // In timelines: what this process is, "tf.data worker host:4242", and what each reply brings.
  std::string name;
  std::string brings;
  fabric::Device* device;
  memory::Arena* arena;          // where the responder stages what its fabric cannot reach
  memory::Arena* receive_arena;  // where the caller lets payloads land
  const Settings* settings;
  SecretFile* secret_file;
};

}  // namespace rdma_transport::rpc
