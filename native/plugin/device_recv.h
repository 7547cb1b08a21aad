// Receives tensors into the memory of accelerators: they arrive in the host's first, large ones in
// chunks.
#pragma once

#include "plugin/step_rendezvous.h"
#include "tensorflow/core/common_runtime/device.h"

namespace rdma_transport {

// Calls `done` once, on any thread, with the tensor in memory of `device`. Until then, the caller
// holds everything that the arguments point to.
void RecvToDevice(StepRendezvous* rendezvous, tensorflow::Device* device,
                  const tensorflow::Rendezvous::ParsedKey& key,
                  const tensorflow::Rendezvous::Args& args,
                  tensorflow::Rendezvous::DoneCallback done);

}  // namespace rdma_transport
