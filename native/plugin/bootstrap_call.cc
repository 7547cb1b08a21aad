#include "plugin/bootstrap_call.h"

#include <functional>
#include <string>
#include <utility>

#include "plugin/status_conversion.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {
namespace {

struct Call {
  std::shared_ptr<tensorflow::WorkerCacheInterface> cache;
  std::string task;
  tensorflow::WorkerInterface* worker = nullptr;
  tensorflow::CallOptions options;
  tensorflow::RecvTensorRequest request;
  tensorflow::TensorResponse response;
};

void CallBootstrap(const std::shared_ptr<tensorflow::WorkerCacheInterface>& cache,
                   const std::string& task, tensorflow::Device* device, std::string request,
                   Nanos timeout, std::function<void(Status, std::string)> done) {
  auto call = std::make_shared<Call>();
  call->cache = cache;
  call->task = task;
  call->worker = call->cache->GetOrCreateWorker(task);
  if (call->worker == nullptr) {
    return done(Status(Code::kUnavailable, "the cluster has no such task"), "");
  }
  call->options.SetTimeout(timeout / kMillisecond);
  call->request.set_rendezvous_key(kBootstrapKey);
  call->request.set_request_id(tensorflow::GetUniqueRequestId());
  call->request.mutable_transport_options()->set_type_url(kBootstrapType);
  call->request.mutable_transport_options()->set_value(std::move(request));
  // Without this the reply's parser crashes.
  call->response.InitAlloc(device, tensorflow::AllocatorAttributes());
  call->worker->RecvTensorAsync(
      &call->options, &call->request, &call->response,
      [call, done = std::move(done)](const absl::Status& status) {
        call->cache->ReleaseWorker(call->task, call->worker);
        const auto& reply = call->response.metadata().transport_options();
        if (!status.ok()) return done(FromTensorFlow(status), "");
        if (reply.type_url() != kBootstrapType) {
          return done(Status(Code::kUnimplemented, "no bootstrap in the reply"), "");
        }
        done(OkStatus(), std::string(reply.value()));
      });
}

}  // namespace

BootstrapCall BootstrapOver(std::shared_ptr<tensorflow::WorkerCacheInterface> cache,
                            const Peer* peer, tensorflow::Device* device) {
  return [cache = std::move(cache), peer, device](std::string request, Nanos timeout,
                                                  std::function<void(Status, std::string)> done) {
    CallBootstrap(cache, peer->task(), device, std::move(request), timeout, std::move(done));
  };
}

}  // namespace rdma_transport
