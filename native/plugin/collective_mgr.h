// TensorFlow's manager of collectives, using this transport to reach other tasks.
#pragma once

#include <memory>

#include "protocol/endpoint.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace rdma_transport {

// The caller owns the result. `devices` and `endpoint` must outlive it. It shares `cache`, through
// which it reaches the cluster's tasks, because a server replaces the caches of its sessions while
// collectives run.
tensorflow::CollectiveExecutorMgrInterface* MakeCollectiveMgr(
    const tensorflow::ConfigProto& config, const tensorflow::DeviceMgr* devices,
    std::shared_ptr<tensorflow::WorkerCacheInterface> cache, Endpoint* endpoint);

}  // namespace rdma_transport
