// The bootstrap over TensorFlow's own connections: a RecvTensor call with a private key. The plugin
// answers it. A stock worker rejects it at once as malformed, which shows that it has no plugin.
#pragma once

#include <memory>
#include <string>

#include "protocol/bootstrap.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdma_transport {

inline constexpr char kBootstrapKey[] = "rdma_transport_bootstrap";
inline constexpr char kBootstrapType[] = "type.googleapis.com/rdma_transport.Bootstrap";

// Calls `task` through `cache`. `device` is any local device; it only serves to parse the reply.
// Calls `done` exactly once, on any thread; see BootstrapCall for the codes.
void CallBootstrap(std::shared_ptr<tensorflow::WorkerCacheInterface> cache, const std::string& task,
                   tensorflow::Device* device, std::string request, Nanos timeout,
                   std::function<void(Status, std::string)> done);

}  // namespace rdma_transport
