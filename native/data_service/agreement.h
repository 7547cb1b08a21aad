// Whether this process can transfer elements by the fabric, and how worker and client agree on it.
#pragma once

#include <string>

#include "base/status.h"
#include "rpc/context.h"

namespace rdma_transport {

// FailedPrecondition: there is no fabric here, and why. `role` is "worker" or "reader".
Status PrepareTransfer(const char* role, rpc::Context* context);
// What RDMA_TRANSPORT_FALLBACK says.
bool MayUseGrpc();

// What a worker announces to its clients, and what a client makes of it. `grpc_address` is where
// the worker answers by gRPC what cannot go by the fabric; empty: it does not, or does not know.
std::string Announcement(const Status& prepared, const std::string& grpc_address);
Status CheckAnnouncement(const std::string& announcement, std::string* grpc_address);

}  // namespace rdma_transport
