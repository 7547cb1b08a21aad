#include "plugin/remote_calls.h"

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "plugin/failed_steps.h"
#include "plugin/status_conversion.h"
#include "plugin/step_errors.h"
#include "protocol/calls.h"
#include "protocol/counters.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/status.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// --- Over gRPC ---

// Ends a RunGraph call over gRPC whose peer died or fell silent.
class RunGraphWatch final : public PendingCall {
 public:
  RunGraphWatch(tf::CallOptions* options, const Peer* peer) : options_(options), peer_(peer) {}

  void OnDelivery(Delivery delivery) override {
    std::lock_guard<std::mutex> lock(mu_);
    lost_ = delivery.status;
    if (!finished_) options_->StartCancel();
  }

  void Cancel() {
    std::lock_guard<std::mutex> lock(mu_);
    if (!finished_) options_->StartCancel();
  }

  // The call ended with `status`: what its caller should see.
  absl::Status Finish(const absl::Status& status) {
    const bool undisturbed = Claim();
    std::lock_guard<std::mutex> lock(mu_);
    finished_ = true;  // `options_` is about to go
    if (undisturbed || status.ok() || lost_.ok()) return status;
    return ToTensorFlow(lost_, peer_->task());
  }

 private:
  std::mutex mu_;
  tf::CallOptions* const options_;
  const Peer* const peer_;
  bool finished_ = false;
  Status lost_;
};

void RunGraphByGrpc(tf::WorkerInterface* inner, Peer* peer, tf::CallOptions* opts,
                    tf::RunGraphRequestWrapper* request,
                    tf::MutableRunGraphResponseWrapper* response, tf::StatusCallback done) {
  GlobalCounters().calls_by_grpc.fetch_add(1, std::memory_order_relaxed);
  if (opts == nullptr) return inner->RunGraphAsync(opts, request, response, std::move(done));
  const int64_t step_id = request->step_id();
  auto watch = std::make_shared<RunGraphWatch>(opts, peer);
  inner->RunGraphAsync(
      opts, request, response,
      [watch, done = std::move(done)](const absl::Status& status) { done(watch->Finish(status)); });
  peer->Watch(watch);
  if (HasFailed(step_id)) watch->Cancel();
}

// --- Over a link ---

class RunGraphCall final : public PendingCall {
 public:
  RunGraphCall(tf::WorkerInterface* inner, Peer* peer, tf::CallOptions* opts,
               tf::RunGraphRequestWrapper* request, tf::MutableRunGraphResponseWrapper* response,
               tf::StatusCallback done)
      : inner_(inner),
        peer_(peer),
        opts_(opts),
        request_(request),
        response_(response),
        done_(std::move(done)) {}

  static void Run(const std::shared_ptr<RunGraphCall>& call) {
    // Before the call is made: `opts_` may be gone when Peer::Call() returns.
    call->opts_->SetCancelCallback([call] { Cancel(call); });
    if (HasFailed(call->request_->step_id())) return Cancel(call);
    std::function<void()> stop = call->peer_->Call(
        CallMethod::kRunGraph, call->request_->ToProto().SerializeAsString(), call);
    if (stop == nullptr) {
      if (call->Claim()) call->RunByGrpc();
      return;
    }
    GlobalCounters().calls_by_fabric.fetch_add(1, std::memory_order_relaxed);
    call->SetStop(std::move(stop));
  }

  void OnDelivery(Delivery delivery) override {
    if (delivery.status.code() == Code::kUnimplemented) return RunByGrpc();
    if (delivery.status.ok()) return Finish(absl::OkStatus());
    if (delivery.error.empty()) {
      Stop();  // a peer that was only silent must not run the step when it resumes
      return Finish(ToTensorFlow(delivery.status, peer_->task()));
    }
    const absl::Status failed = DecodeError(delivery.error);
    if (!request_->store_errors_in_response_body()) return Finish(failed);
    response_->set_status(failed);
    Finish(absl::OkStatus());
  }

 private:
  // Called with locks of TensorFlow held, so the rest is done elsewhere. The peer is notified here,
  // before any call that its caller makes later. As over gRPC, the caller does not wait for the
  // peer.
  static void Cancel(const std::shared_ptr<RunGraphCall>& call) {
    if (!call->Claim()) return;
    call->Stop();
    tf::Env::Default()->SchedClosure([call] {
      // As over gRPC, this is not the cause of the step's error. If it were, the step could report
      // it in place of AbortedError, and a client that starts again after an abort would end.
      const absl::Status cancelled = absl::CancelledError("RunGraph was cancelled by its caller");
      call->Finish(tsl::StatusGroup::MakeDerived(cancelled));
    });
  }

  void SetStop(std::function<void()> stop) {
    std::unique_lock<std::mutex> lock(mu_);
    if (!stopped_) {
      stop_ = std::move(stop);
      return;
    }
    lock.unlock();
    stop();
  }

  // Releases nothing: the link may be destroyed with this call, but not with locks held.
  void Stop() {
    std::function<void()> stop;
    {
      std::lock_guard<std::mutex> lock(mu_);
      stopped_ = true;
      stop = stop_;
    }
    if (stop != nullptr) stop();
  }

  // The call was not made. Only the caller that claimed this may call it, or Finish().
  void RunByGrpc() {
    opts_->ClearCancelCallback();
    RunGraphByGrpc(inner_, peer_, opts_, request_, response_, std::move(done_));
  }

  void Finish(const absl::Status& status) {
    opts_->ClearCancelCallback();
    const tf::StatusCallback done = std::move(done_);
    done(status);
  }

  tf::WorkerInterface* const inner_;
  Peer* const peer_;
  tf::CallOptions* const opts_;
  tf::RunGraphRequestWrapper* const request_;
  tf::MutableRunGraphResponseWrapper* const response_;
  tf::StatusCallback done_;

  std::mutex mu_;
  bool stopped_ = false;
  std::function<void()> stop_;
};

// Replies carry no tensors and no statistics, and the caller itself enforces no deadline.
bool FitsLink(const tf::RunGraphRequestWrapper& request, tf::CallOptions* opts) {
  const tf::ExecutorOpts& recorded = request.exec_opts();
  return opts != nullptr && opts->GetTimeout() == 0 && request.num_recvs() == 0 &&
         !request.is_partial() && !recorded.record_costs() && !recorded.record_timeline() &&
         !recorded.record_partition_graphs() && request.ToProto().ByteSizeLong() <= kMaxCallLength;
}

// It is repeated over gRPC if it may have been lost: to clean up twice does no harm.
class CleanupCall final : public PendingCall {
 public:
  CleanupCall(tf::WorkerInterface* inner, const tf::CleanupGraphRequest* request,
              tf::CleanupGraphResponse* response, tf::StatusCallback done)
      : inner_(inner), request_(request), response_(response), done_(std::move(done)) {}

  void OnDelivery(Delivery delivery) override {
    if (!delivery.status.ok() && delivery.error.empty()) return CallByGrpc();
    const tf::StatusCallback done = std::move(done_);
    done(delivery.status.ok() ? absl::OkStatus() : DecodeError(delivery.error));
  }
  // Only the caller that claimed this may call it.
  void CallByGrpc() { inner_->CleanupGraphAsync(request_, response_, std::move(done_)); }

 private:
  tf::WorkerInterface* const inner_;
  const tf::CleanupGraphRequest* const request_;
  tf::CleanupGraphResponse* const response_;
  tf::StatusCallback done_;
};

}  // namespace

void CallRunGraph(tf::WorkerInterface* inner, Peer* peer, tf::CallOptions* opts,
                  tf::RunGraphRequestWrapper* request, tf::MutableRunGraphResponseWrapper* response,
                  tf::StatusCallback done) {
  auto noted = [step_id = request->step_id(), response,
                done = std::move(done)](const absl::Status& status) {
    NoteOutcome(step_id, status.ok() ? response->status() : status);
    done(status);
  };
  if (!FitsLink(*request, opts)) {
    return RunGraphByGrpc(inner, peer, opts, request, response, std::move(noted));
  }
  RunGraphCall::Run(
      std::make_shared<RunGraphCall>(inner, peer, opts, request, response, std::move(noted)));
}

void CallCleanupGraph(tf::WorkerInterface* inner, Peer* peer,
                      const tf::CleanupGraphRequest* request, tf::CleanupGraphResponse* response,
                      tf::StatusCallback done) {
  auto call = std::make_shared<CleanupCall>(inner, request, response, std::move(done));
  if (peer->Call(CallMethod::kCleanupGraph, request->SerializeAsString(), call) != nullptr) return;
  if (call->Claim()) call->CallByGrpc();  // a peer may have sent a reply to what was not sent
}

}  // namespace rdma_transport
