// Whether tensors arrive as they were sent (RDMA_TRANSPORT_CHECKSUM).
#pragma once

#include <string>

#include "protocol/tensor.h"

namespace rdma_transport {

// Reads the bytes of what `peer` sent, if they came with a checksum. DataLoss in `delivery` where
// they are not what was sent. Any thread; at the last moment before the consumer has them.
void Verify(const std::string& peer, Delivery* delivery);

}  // namespace rdma_transport
