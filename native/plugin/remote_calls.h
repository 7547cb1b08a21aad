// Calls of another task's worker service that begin each step of a session.
#pragma once

#include "protocol/peer.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdma_transport {

// As WorkerInterface::RunGraphAsync() of `inner`, which makes calls over gRPC. `opts` may be null.
// The call fails when `peer` dies or falls silent, where gRPC alone would wait for a stopped
// process forever.
void CallRunGraph(tensorflow::WorkerInterface* inner, Peer* peer, tensorflow::CallOptions* opts,
                  tensorflow::RunGraphRequestWrapper* request,
                  tensorflow::MutableRunGraphResponseWrapper* response,
                  tensorflow::StatusCallback done);

}  // namespace rdma_transport
