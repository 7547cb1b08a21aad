// Whether this process can transfer elements over the fabric, and how worker and client agree on
// it.
#pragma once

#include <string>

#include "base/status.h"
#include "rpc/context.h"

namespace rdma_transport {

// Sets up `context`. Returns FailedPrecondition, with the reason, if there is no fabric, or if this
// TensorFlow would lose elements. `role` is "worker" or "reader".
Status PrepareTransfer(const char* role, rpc::Context* context);
// Returns whether RDMA_TRANSPORT_FALLBACK allows gRPC.
bool MayUseGrpc();

// The announcement that a worker sends to its clients, and its check by a client. `grpc_address` is
// where the worker serves elements over gRPC; it is empty if the worker does not, or does not know.
std::string Announcement(const Status& prepared, const std::string& grpc_address);
Status CheckAnnouncement(const std::string& announcement, std::string* grpc_address);

}  // namespace rdma_transport
