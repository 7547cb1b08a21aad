// Sends buffers of collectives out of the memory of accelerators.
#pragma once

#include "plugin/collective_transfer.h"
#include "tensorflow/core/framework/tensor.h"

namespace rdma_transport {

// Posts a copy of the buffer, allocated by `host`, when the device has made it. The rest is as in
// CollectivePost::Run().
void PostFromDevice(CollectiveStep* step, const CollectiveTransferArgs& args,
                    const tensorflow::Tensor& tensor, tensorflow::Allocator* host, Peer* peer);

}  // namespace rdma_transport
