// Connects TensorFlow's _Send and _Recv between tasks to the transport.
#pragma once

#include "plugin/step_rendezvous.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"

namespace rdma_transport {

// Makes the rendezvous of each step. Thread-safe. `endpoint` must outlive it.
class RendezvousMgr final : public tensorflow::BaseRendezvousMgr {
 public:
  RendezvousMgr(const tensorflow::WorkerEnv* env, Endpoint* endpoint)
      : BaseRendezvousMgr(env), endpoint_(endpoint) {}

  // Serves a RecvTensor call of a peer.
  void RecvLocalAsync(int64_t step_id, const tensorflow::Rendezvous::ParsedKey& parsed,
                      tensorflow::Rendezvous::DoneCallback done) override;
  void Cleanup(int64_t step_id) override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  Endpoint* const endpoint_;
};

// The rendezvous of one step. Thread-safe.
class Rendezvous final : public StepRendezvous {
 public:
  using StepRendezvous::StepRendezvous;

  // Sends the tensor to its task at once, without a request, or when it has been copied out of an
  // accelerator's memory.
  absl::Status Send(const ParsedKey& key, const tensorflow::Rendezvous::Args& args,
                    const tensorflow::Tensor& tensor, bool is_dead) override;
  // Also notifies all peers. Over gRPC, their pending calls would fail; here there are no such
  // calls.
  void StartAbort(const absl::Status& status) override;

 protected:
  void RecvFromRemoteAsync(const ParsedKey& parsed, const tensorflow::Rendezvous::Args& args,
                           DoneCallback done) override;
};

}  // namespace rdma_transport
