// Verifies that tensors arrive as they were sent (RDMA_TRANSPORT_CHECKSUM).
#pragma once

#include <string>

#include "protocol/tensor.h"

namespace rdma_transport {

// Verifies the bytes that `peer` sent, if they have a checksum, and sets `delivery->status` to
// DataLoss if they differ. Called on any thread, just before the consumer gets the tensor.
void Verify(const std::string& peer, Delivery* delivery);

}  // namespace rdma_transport
