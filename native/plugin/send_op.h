// The _Send operation of a process with an rdma server: TensorFlow's own kernel, and the plan of
// its edge.
#pragma once

namespace rdma_transport {

// Makes kernels of _Send on CPUs that were marked by analyzer::MarkEdges() plan their edges, for as
// long as they live. Only the first call has an effect. Thread-safe.
void RegisterSendOp();

}  // namespace rdma_transport
