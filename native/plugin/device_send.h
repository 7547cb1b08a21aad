// Sends tensors out of the memory of accelerators. The peer's card reads them there if it can.
// Otherwise they are copied into the host's memory first.
#pragma once

#include <memory>

#include "plugin/step_rendezvous.h"
#include "protocol/peer.h"

namespace rdma_transport {

// From where to where. `context` may be null, as in the arguments of a _Send, and so may `plan`.
struct DeviceRoute {
  StepRendezvous* rendezvous;
  Peer* peer;
  tensorflow::Device* device;
  tensorflow::DeviceContext* context;
  std::shared_ptr<const EdgePlan> plan;
};

// Returns at once, and sends when the device has computed or copied the tensor. An error then goes
// to StepRendezvous::FailSend(). `fallback` sends the tensor by gRPC; it is not used after the
// call.
void SendFromDevice(const DeviceRoute& route, const tensorflow::Rendezvous::ParsedKey& key,
                    const tensorflow::Tensor& tensor, bool is_dead, FallbackSend* fallback);

}  // namespace rdma_transport
