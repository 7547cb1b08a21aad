#include "tensorflow/worker.h"

#include <string>
#include <utility>

#include "tensorflow/bootstrap_call.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {
namespace {

absl::Status Forbidden(const char* what) {
  GlobalCounters().errors.Add("fallback_forbidden");
  return absl::FailedPreconditionError(
      std::string(what) + " would leave the fabric, and RDMA_TRANSPORT_FALLBACK=forbid");
}

}  // namespace

void Worker::GrpcRecvTensorAsync(tensorflow::CallOptions* opts,
                                 const tensorflow::RecvTensorRequest* request,
                                 ::grpc::ByteBuffer* response, tensorflow::StatusCallback done) {
  if (request->rendezvous_key() == kBootstrapKey) {
    tensorflow::RecvTensorResponse reply;
    reply.mutable_transport_options()->set_type_url(kBootstrapType);
    reply.mutable_transport_options()->set_value(
        endpoint_->HandleBootstrap(std::string(request->transport_options().value())));
    tensorflow::grpc::EncodeRecvTensorResponseToByteBuffer(reply, response);
    return done(absl::OkStatus());
  }
  if (!endpoint_->settings().allow_fallback) return done(Forbidden("a tensor asked for by gRPC"));
  GrpcWorker::GrpcRecvTensorAsync(opts, request, response, std::move(done));
}

void Worker::RecvBufAsync(tensorflow::CallOptions* opts, const tensorflow::RecvBufRequest* request,
                          tensorflow::RecvBufResponse* response, tensorflow::StatusCallback done) {
  if (!endpoint_->settings().allow_fallback) return done(Forbidden("a collective's buffer"));
  // Collectives are carried by TensorFlow's transport, and counted as such.
  GlobalCounters().Sent(Path::kGrpc).Add(static_cast<uint64_t>(request->num_bytes()));
  GlobalCounters().fallback_reasons.Add("a collective's buffer");
  GrpcWorker::RecvBufAsync(opts, request, response, std::move(done));
}

}  // namespace rdma_transport
