// TensorFlow's manager of collectives, with this transport's access to other tasks.
#pragma once

#include <memory>

#include "protocol/endpoint.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace rdma_transport {

// The caller owns it. `devices` and `endpoint` outlive it. It shares `cache`, by which it reaches
// the cluster's tasks: a server replaces the caches of its sessions while collectives run.
tensorflow::CollectiveExecutorMgrInterface* MakeCollectiveMgr(
    const tensorflow::ConfigProto& config, const tensorflow::DeviceMgr* devices,
    std::shared_ptr<tensorflow::WorkerCacheInterface> cache, Endpoint* endpoint);

}  // namespace rdma_transport
