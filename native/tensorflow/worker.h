// The task's worker service: TensorFlow's, and it answers the bootstrap.
#pragma once

#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_worker_service.h"

namespace rdma_transport {

class Worker final : public tensorflow::GrpcWorker {
 public:
  Worker(tensorflow::WorkerEnv* env, const tensorflow::ConfigProto& config, Endpoint* endpoint)
      : GrpcWorker(env, config), endpoint_(endpoint) {}

  void GrpcRecvTensorAsync(tensorflow::CallOptions* opts,
                           const tensorflow::RecvTensorRequest* request,
                           ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) override;
  void RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                    tensorflow::RecvBufResponse* response,
                    tensorflow::StatusCallback done) override;

 private:
  Endpoint* const endpoint_;
};

}  // namespace rdma_transport
