// The bootstrap over TensorFlow's own connections: a RecvTensor call with a private key. The plugin
// answers it. A stock worker rejects it at once as malformed, which shows that it has no plugin.
#pragma once

#include <memory>

#include "protocol/bootstrap.h"
#include "protocol/peer.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdma_transport {

inline constexpr char kBootstrapKey[] = "rdma_transport_bootstrap";
inline constexpr char kBootstrapType[] = "type.googleapis.com/rdma_transport.Bootstrap";

// Returns what calls the peer through `cache`, while the peer exists. `device` is any local device;
// it only serves to parse the reply.
BootstrapCall BootstrapOver(std::shared_ptr<tensorflow::WorkerCacheInterface> cache,
                            const Peer* peer, tensorflow::Device* device);

}  // namespace rdma_transport
