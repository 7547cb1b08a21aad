#include "plugin/remote_calls.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "plugin/failed_steps.h"
#include "plugin/status_conversion.h"
#include "protocol/pending_recv.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// Ends a RunGraph call whose peer died or fell silent.
class RunGraphWatch final : public PendingRecv {
 public:
  RunGraphWatch(tf::CallOptions* options, const Peer* peer) : options_(options), peer_(peer) {}

  void OnUseGrpc(const std::string&) override {}
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

}  // namespace

void CallRunGraph(tf::WorkerInterface* inner, Peer* peer, tf::CallOptions* opts,
                  tf::RunGraphRequestWrapper* request, tf::MutableRunGraphResponseWrapper* response,
                  tf::StatusCallback done) {
  const int64_t step_id = request->step_id();
  std::shared_ptr<RunGraphWatch> watch;
  if (opts != nullptr) watch = std::make_shared<RunGraphWatch>(opts, peer);
  inner->RunGraphAsync(
      opts, request, response,
      [step_id, response, watch, done = std::move(done)](const absl::Status& ended) {
        const absl::Status status = watch == nullptr ? ended : watch->Finish(ended);
        NoteOutcome(step_id, status.ok() ? response->status() : status);
        done(status);
      });
  if (watch == nullptr) return;
  peer->Watch(watch);
  if (HasFailed(step_id)) watch->Cancel();
}

}  // namespace rdma_transport
