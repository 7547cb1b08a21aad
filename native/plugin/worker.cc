#include "plugin/worker.h"

#include <memory>
#include <string>
#include <utility>

#include "plugin/bootstrap_call.h"
#include "plugin/collective_steps.h"
#include "plugin/failed_steps.h"
#include "plugin/graph_passes.h"
#include "plugin/graph_plans.h"
#include "plugin/run_request.h"
#include "plugin/step_errors.h"
#include "plugin/worker_cache.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/rpc/grpc_tensor_coding.h"
#include "tensorflow/core/distributed_runtime/session_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {
namespace {

absl::Status Forbidden(const char* what) {
  GlobalCounters().errors.Add("fallback_forbidden");
  return absl::FailedPreconditionError(
      std::string(what) + " would fall back to gRPC, and RDMA_TRANSPORT_FALLBACK=forbid");
}

// Each session numbers its graph handles from the start.
std::string OwnerOf(const std::string& session, const std::string& graph) {
  return session + "/" + graph;
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
  std::shared_lock<std::shared_mutex> lock(*collectives_);
  GrpcWorker::RecvBufAsync(
      opts, request, response, [this, request, done = std::move(done)](const absl::Status& status) {
        if (status.ok()) {
          endpoint_->Fetched(StepOfCollectives(request->step_id()), request->buf_rendezvous_key());
        }
        done(status);
      });
}

void Worker::CompleteGroupAsync(tensorflow::CallOptions* opts,
                                const tensorflow::CompleteGroupRequest* request,
                                tensorflow::CompleteGroupResponse* response,
                                tensorflow::StatusCallback done) {
  std::shared_lock<std::shared_mutex> lock(*collectives_);
  GrpcWorker::CompleteGroupAsync(opts, request, response, std::move(done));
}

void Worker::CompleteInstanceAsync(tensorflow::CallOptions* opts,
                                   const tensorflow::CompleteInstanceRequest* request,
                                   tensorflow::CompleteInstanceResponse* response,
                                   tensorflow::StatusCallback done) {
  std::shared_lock<std::shared_mutex> lock(*collectives_);
  GrpcWorker::CompleteInstanceAsync(opts, request, response, std::move(done));
}

void Worker::RunGraphAsync(tensorflow::CallOptions* opts,
                           tensorflow::RunGraphRequestWrapper* request,
                           tensorflow::MutableRunGraphResponseWrapper* response,
                           tensorflow::StatusCallback done) {
  auto distinct = std::make_shared<RunRequest>(request);
  GrpcWorker::RunGraphAsync(
      opts, distinct.get(), response,
      [this, distinct, response, done = std::move(done)](const absl::Status& status) {
        // A graph that fails before its executors begin has no rendezvous that would abort.
        const absl::Status failed = status.ok() ? response->status() : status;
        NoteOutcome(distinct->step_id(), failed);
        if (!failed.ok()) endpoint_->AbortStep(distinct->step_id(), EncodeError(failed));
        done(status);
      });
}

void Worker::RegisterGraphAsync(const tensorflow::RegisterGraphRequest* request,
                                tensorflow::RegisterGraphResponse* response,
                                tensorflow::StatusCallback done) {
  EdgeCollector collector;  // TensorFlow prepares the graph on this thread
  GrpcWorker::RegisterGraphAsync(
      request, response,
      [this, request, response, &collector, done = std::move(done)](const absl::Status& status) {
        if (status.ok()) Plan(*request, response->graph_handle(), std::move(collector.edges()));
        done(status);
      });
}

void Worker::Plan(const tensorflow::RegisterGraphRequest& request, const std::string& graph_handle,
                  std::vector<analyzer::Edge> edges) {
  std::shared_ptr<tensorflow::WorkerSession> session = env_->session_mgr->LegacySession();
  if (request.create_worker_session_called() &&
      !env_->session_mgr->WorkerSessionForSession(request.session_handle(), &session).ok()) {
    return;
  }
  const auto cache = session->GetSharedWorkerCache();
  tensorflow::Device* device = env_->device_mgr->ListDevices().front();
  PlanEdges(OwnerOf(request.session_handle(), graph_handle), std::move(edges),
            [&](const std::string& task) -> Peer* {
              Peer* peer = PeerOf(cache.get(), task);
              if (peer == nullptr) return nullptr;
              peer->Connect(BootstrapOver(cache, peer, device));
              return peer;
            });
}

void Worker::DeregisterGraphAsync(const tensorflow::DeregisterGraphRequest* request,
                                  tensorflow::DeregisterGraphResponse* response,
                                  tensorflow::StatusCallback done) {
  endpoint_->Unplan(OwnerOf(request->session_handle(), request->graph_handle()));
  GrpcWorker::DeregisterGraphAsync(request, response, std::move(done));
}

void Worker::DeleteWorkerSessionAsync(tensorflow::CallOptions* opts,
                                      const tensorflow::DeleteWorkerSessionRequest* request,
                                      tensorflow::DeleteWorkerSessionResponse* response,
                                      tensorflow::StatusCallback done) {
  endpoint_->Unplan(OwnerOf(request->session_handle(), ""));
  GrpcWorker::DeleteWorkerSessionAsync(opts, request, response, std::move(done));
}

}  // namespace rdma_transport
