// From the edges of a graph that a task has registered to the slots of its peers.
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

// Plans the static ones among `edges`, connects to the peers they lead to, and agrees with these on
// the slots. They stay planned until Endpoint::Unplan(owner). `device` is any local one.
void PlanGraph(Endpoint* endpoint, const std::string& owner, std::vector<analyzer::Edge> edges,
               const std::shared_ptr<tensorflow::WorkerCacheInterface>& cache,
               tensorflow::Device* device);

}  // namespace rdma_transport
