// Receives tensors for accelerators: into their memory, where they arrive in the host's first, or
// into the host's, if a kernel wants them there. Large ones may come in chunks.
#pragma once

#include "plugin/step_rendezvous.h"
#include "tensorflow/core/common_runtime/device.h"

namespace rdma_transport {

// Calls `done` once, on any thread, with the tensor where `args` want it. Until then, the caller
// holds everything that the arguments point to.
void RecvOnDevice(StepRendezvous* rendezvous, tensorflow::Device* device,
                  const tensorflow::Rendezvous::ParsedKey& key,
                  const tensorflow::Rendezvous::Args& args,
                  tensorflow::Rendezvous::DoneCallback done);

}  // namespace rdma_transport
