// The bootstrap over TensorFlow's own connections: a RecvTensor call with a key that is no key. The
// plugin answers it; a stock worker refuses it at once as malformed, which says "no plugin here".
#pragma once

#include <memory>
#include <string>

#include "protocol/bootstrap.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdma_transport {

inline constexpr char kBootstrapKey[] = "rdma_transport_bootstrap";
inline constexpr char kBootstrapType[] = "type.googleapis.com/rdma_transport.Bootstrap";

// Calls `task` through `cache`. `device` is any local device: the reply is parsed on it.
void CallBootstrap(std::shared_ptr<tensorflow::WorkerCacheInterface> cache, const std::string& task,
                   tensorflow::Device* device, std::string request, Nanos timeout,
                   std::function<void(Status, std::string)> done);

}  // namespace rdma_transport
