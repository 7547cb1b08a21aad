// Turns the edges of a registered graph into slots agreed on with peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace tensorflow {
class Device;
}

namespace rdma_transport {

// Plans the static edges among `edges`: connects to their peers and agrees on slots, until
// Endpoint::Unplan(owner). `device` is any local device.
void PlanGraph(Endpoint* endpoint, const std::string& owner, std::vector<analyzer::Edge> edges,
               const std::shared_ptr<tensorflow::WorkerCacheInterface>& cache,
               tensorflow::Device* device);

}  // namespace rdma_transport
