// Serves the calls of a task's worker service that come over links; see remote_calls.h.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker.h"

namespace rdma_transport {

// Thread-safe. Its arguments must outlive it, and it must outlive the calls that run.
class CallService final : public CallHandler {
 public:
  // Calls `worker` on threads of `env`.
  CallService(tensorflow::WorkerInterface* worker, const tensorflow::WorkerEnv* env)
      : worker_(worker), env_(env) {}

  void OnCall(std::shared_ptr<IncomingCall> call) override;

 private:
  void Schedule(std::shared_ptr<IncomingCall> call);
  void RunGraph(const std::shared_ptr<IncomingCall>& call);
  // Cancels a step before any call that arrives later starts, so that a canceled step takes nothing
  // that a later one makes.
  void Cancel(std::shared_ptr<tensorflow::CallOptions> step);
  void CleanupGraph(const std::shared_ptr<IncomingCall>& call);

  tensorflow::WorkerInterface* const worker_;
  const tensorflow::WorkerEnv* const env_;

  std::mutex mu_;
  int canceling_ = 0;                                   // steps
  std::vector<std::shared_ptr<IncomingCall>> waiting_;  // until none is being canceled
};

}  // namespace rdma_transport
