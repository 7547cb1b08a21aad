// Calls of another task's worker service that begin and end each step of a session. They go over
// the link to that task if it is up and the call is short, and otherwise over gRPC.
#pragma once

#include "protocol/peer.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"

namespace rdma_transport {

// As WorkerInterface::RunGraphAsync(). `inner` makes calls over gRPC. `opts` may be null. The call
// fails when `peer` dies or falls silent, where gRPC alone would wait for a stopped process
// forever.
void CallRunGraph(tensorflow::WorkerInterface* inner, Peer* peer, tensorflow::CallOptions* opts,
                  tensorflow::RunGraphRequestWrapper* request,
                  tensorflow::MutableRunGraphResponseWrapper* response,
                  tensorflow::StatusCallback done);

// As WorkerInterface::CleanupGraphAsync(). A call that may have been lost is repeated over gRPC.
void CallCleanupGraph(tensorflow::WorkerInterface* inner, Peer* peer,
                      const tensorflow::CleanupGraphRequest* request,
                      tensorflow::CleanupGraphResponse* response, tensorflow::StatusCallback done);

}  // namespace rdma_transport
