// The _Send operation of a process with an rdma server: TensorFlow's own kernel, and the plan of
// its edge.
#pragma once

#include <string>

namespace rdma_transport {

// Makes kernels of _Send on devices of this type that were marked by analyzer::MarkEdges() plan
// their edges, for as long as they live. Only the first call for a type has an effect. Thread-safe.
void RegisterSendOp(const std::string& device_type);

}  // namespace rdma_transport
