// TensorFlow's worker service, which also answers the bootstrap and plans registered graphs.
#pragma once

#include <shared_mutex>
#include <string>
#include <vector>

#include "analyzer/plan.h"
#include "plugin/call_service.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"

namespace rdma_transport {

// Thread-safe. `endpoint` and `collectives` must outlive it.
class Worker final : public tensorflow::GrpcWorker {
 public:
  // Calls that use the manager of collectives hold `collectives`, so that its owner can replace it.
  Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config, Endpoint* endpoint,
         std::shared_mutex* collectives)
      : GrpcWorker(env, config), endpoint_(endpoint), collectives_(collectives), calls_(this, env) {
    endpoint_->SetCallHandler(&calls_);
  }
  ~Worker() override { endpoint_->SetCallHandler(nullptr); }

  void GrpcRecvTensorAsync(tensorflow::CallOptions* opts,
                           const tensorflow::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) override;
  void RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override;

  void CompleteGroupAsync(tensorflow::CallOptions* opts,
                          const tensorflow::CompleteGroupRequest* request,
                          tensorflow::CompleteGroupResponse* response,
                          tensorflow::StatusCallback done) override;
  void CompleteInstanceAsync(tensorflow::CallOptions* opts,
                             const tensorflow::CompleteInstanceRequest* request,
                             tensorflow::CompleteInstanceResponse* response,
                             tensorflow::StatusCallback done) override;

  void RunGraphAsync(tensorflow::CallOptions* opts, tensorflow::RunGraphRequestWrapper* request,
                     tensorflow::MutableRunGraphResponseWrapper* response,
                     tensorflow::StatusCallback done) override;
  void RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                          tensorflow::RegisterGraphResponse* response,
                          tensorflow::StatusCallback done) override;
  void DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                            tensorflow::DeregisterGraphResponse* response,
                            tensorflow::StatusCallback done) override;
  void DeleteWorkerSessionAsync(tensorflow::CallOptions* opts,
                                const tensorflow::DeleteWorkerSessionRequest* request,
                                tensorflow::DeleteWorkerSessionResponse* response,
                                tensorflow::StatusCallback done) override;

 private:
  void Plan(const tensorflow::RegisterGraphRequest& request, const std::string& graph_handle,
            std::vector<analyzer::Edge> edges);

  Endpoint* const endpoint_;
  std::shared_mutex* const collectives_;
  CallService calls_;
};

}  // namespace rdma_transport
