// The _Send operation of a process with an rdma server: TensorFlow's own kernel, and the plan of
// its edge.
#pragma once

#include <memory>
#include <string>

#include "protocol/static_edge.h"

namespace rdma_transport {

// Makes kernels of _Send on devices of this type that were marked by analyzer::MarkEdges() send
// with the plan of their edge. Only the first call for a type has an effect. Thread-safe.
void RegisterSendOp(const std::string& device_type);

// Returns the plan of the edge whose kernel is running on this thread, or null.
std::shared_ptr<const EdgePlan> PlanOfSend();

}  // namespace rdma_transport
