// TensorFlow's manager of collectives, with this transport's access to other tasks.
#pragma once

#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/framework/collective.h"
#include "tensorflow/core/protobuf/config.pb.h"

namespace rdma_transport {

// The caller owns it. `env`, `cache` and `endpoint` outlive it.
tensorflow::CollectiveExecutorMgrInterface* MakeCollectiveMgr(
    const tensorflow::ConfigProto& config, const tensorflow::WorkerEnv* env,
    tensorflow::WorkerCacheInterface* cache, Endpoint* endpoint);

}  // namespace rdma_transport
