// Serves the calls of a task's worker service that come over links; see remote_calls.h.
#pragma once

#include <memory>

#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker.h"

namespace rdma_transport {

// Thread-safe. Its arguments must outlive it, and the calls that run.
class CallService final : public CallHandler {
 public:
  // Calls `worker` on threads of `env`.
  CallService(tensorflow::WorkerInterface* worker, const tensorflow::WorkerEnv* env)
      : worker_(worker), env_(env) {}

  void OnCall(std::shared_ptr<IncomingCall> call) override;

 private:
  void RunGraph(const std::shared_ptr<IncomingCall>& call);
  void CleanupGraph(const std::shared_ptr<IncomingCall>& call);

  tensorflow::WorkerInterface* const worker_;
  const tensorflow::WorkerEnv* const env_;
};

}  // namespace rdma_transport
