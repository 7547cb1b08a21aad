// Sends tensors of which the receiver knows nothing before their notification: with their bytes, or
// with a descriptor of the memory to read.
#pragma once

#include "fabric/fabric.h"
#include "protocol/link_context.h"
#include "protocol/outstanding_buffers.h"
#include "protocol/send_outcome.h"
#include "protocol/tensor.h"

namespace rdma_transport {

// Serves one link. Thread-safe.
class DynamicSender {
 public:
  // The arguments must outlive it.
  DynamicSender(const LinkContext& context, fabric::Channel* channel,
                OutstandingBuffers* outstanding)
      : context_(context), channel_(channel), outstanding_(outstanding) {}

  SendOutcome SendInline(const Outgoing& tensor);
  // Copies the tensor into the arena first if the peer cannot read it where it is. Does not carry a
  // tensor in memory of a device that the peer cannot read.
  SendOutcome SendDescriptor(Outgoing* tensor);

 private:
  const LinkContext& context_;
  fabric::Channel* const channel_;
  OutstandingBuffers* const outstanding_;
};

}  // namespace rdma_transport
