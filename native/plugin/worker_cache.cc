#include "plugin/worker_cache.h"

#include <utility>

#include "plugin/device_names.h"
#include "plugin/remote_calls.h"
#include "plugin/silent_tasks.h"
#include "tensorflow/core/distributed_runtime/call_options.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {

namespace tf = tensorflow;

class RemoteWorker final : public tf::WorkerInterface {
 public:
  RemoteWorker(tf::WorkerInterface* inner, Peer* peer, std::string address,
               std::shared_ptr<ReceiptLog> receipts)
      : inner_(inner), peer_(peer), address_(std::move(address)), receipts_(std::move(receipts)) {}
  ~RemoteWorker() override = default;

  Peer* peer() const { return peer_; }
  const std::shared_ptr<ReceiptLog>& receipts() const { return receipts_; }
  tf::WorkerInterface* inner() const { return inner_; }

  void RunGraphAsync(tf::CallOptions* opts, tf::RunGraphRequestWrapper* request,
                     tf::MutableRunGraphResponseWrapper* response,
                     tf::StatusCallback done) override {
    CallRunGraph(inner_, peer_, opts, request, response, std::move(done));
  }
  tf::MutableRunGraphRequestWrapper* CreateRunGraphRequest() override {
    return inner_->CreateRunGraphRequest();
  }
  tf::MutableRunGraphResponseWrapper* CreateRunGraphResponse() override {
    return inner_->CreateRunGraphResponse();
  }

  void GetStatusAsync(tf::CallOptions* opts, const tf::GetStatusRequest* request,
                      tf::GetStatusResponse* response, bool fail_fast,
                      tf::StatusCallback done) override {
    if (!fail_fast) done = ReportSilence(peer_->task(), address_, std::move(done));
    inner_->GetStatusAsync(opts, request, response, fail_fast, std::move(done));
  }
  void CreateWorkerSessionAsync(const tf::CreateWorkerSessionRequest* request,
                                tf::CreateWorkerSessionResponse* response,
                                tf::StatusCallback done) override {
    inner_->CreateWorkerSessionAsync(request, response, std::move(done));
  }
  void DeleteWorkerSessionAsync(tf::CallOptions* opts,
                                const tf::DeleteWorkerSessionRequest* request,
                                tf::DeleteWorkerSessionResponse* response,
                                tf::StatusCallback done) override {
    inner_->DeleteWorkerSessionAsync(opts, request, response, std::move(done));
  }
  void RegisterGraphAsync(const tf::RegisterGraphRequest* request,
                          tf::RegisterGraphResponse* response, tf::StatusCallback done) override {
    inner_->RegisterGraphAsync(request, response, std::move(done));
  }
  void DeregisterGraphAsync(const tf::DeregisterGraphRequest* request,
                            tf::DeregisterGraphResponse* response,
                            tf::StatusCallback done) override {
    inner_->DeregisterGraphAsync(request, response, std::move(done));
  }
  void CleanupGraphAsync(const tf::CleanupGraphRequest* request, tf::CleanupGraphResponse* response,
                         tf::StatusCallback done) override {
    CallCleanupGraph(inner_, peer_, request, response, std::move(done));
  }
  void CleanupAllAsync(const tf::CleanupAllRequest* request, tf::CleanupAllResponse* response,
                       tf::StatusCallback done) override {
    inner_->CleanupAllAsync(request, response, std::move(done));
  }
  void RecvTensorAsync(tf::CallOptions* opts, const tf::RecvTensorRequest* request,
                       tf::TensorResponse* response, tf::StatusCallback done) override {
    inner_->RecvTensorAsync(opts, request, response, std::move(done));
  }
  void LoggingAsync(const tf::LoggingRequest* request, tf::LoggingResponse* response,
                    tf::StatusCallback done) override {
    inner_->LoggingAsync(request, response, std::move(done));
  }
  void TracingAsync(const tf::TracingRequest* request, tf::TracingResponse* response,
                    tf::StatusCallback done) override {
    inner_->TracingAsync(request, response, std::move(done));
  }
  void RecvBufAsync(tf::CallOptions* opts, const tf::RecvBufRequest* request,
                    tf::RecvBufResponse* response, tf::StatusCallback done) override {
    inner_->RecvBufAsync(opts, request, response, std::move(done));
  }
  void CompleteGroupAsync(tf::CallOptions* opts, const tf::CompleteGroupRequest* request,
                          tf::CompleteGroupResponse* response, tf::StatusCallback done) override {
    inner_->CompleteGroupAsync(opts, request, response, std::move(done));
  }
  void CompleteInstanceAsync(tf::CallOptions* opts, const tf::CompleteInstanceRequest* request,
                             tf::CompleteInstanceResponse* response,
                             tf::StatusCallback done) override {
    inner_->CompleteInstanceAsync(opts, request, response, std::move(done));
  }
  void GetStepSequenceAsync(const tf::GetStepSequenceRequest* request,
                            tf::GetStepSequenceResponse* response,
                            tf::StatusCallback done) override {
    inner_->GetStepSequenceAsync(request, response, std::move(done));
  }

 private:
  tf::WorkerInterface* const inner_;
  Peer* const peer_;
  const std::string address_;
  const std::shared_ptr<ReceiptLog> receipts_;
};

WorkerCache::WorkerCache(std::unique_ptr<tf::WorkerCacheInterface> inner, Endpoint* endpoint,
                         std::string self, const tf::ClusterDef& cluster)
    : WorkerCacheWrapper(inner.get()),
      inner_(std::move(inner)),
      endpoint_(endpoint),
      self_(std::move(self)) {
  for (const auto& job : cluster.job()) {
    for (const auto& task : job.tasks()) {
      addresses_[TaskName(job.name(), task.first)] = task.second;
    }
  }
}

WorkerCache::~WorkerCache() {
  for (const auto& [target, worker] : workers_) inner_->ReleaseWorker(target, worker->inner());
}

tf::WorkerInterface* WorkerCache::GetOrCreateWorker(const std::string& target) {
  if (target == self_) return inner_->GetOrCreateWorker(target);
  std::lock_guard<std::mutex> lock(mu_);
  const auto found = workers_.find(target);
  if (found != workers_.end()) return found->second.get();
  tf::WorkerInterface* inner = inner_->GetOrCreateWorker(target);
  if (inner == nullptr) return nullptr;
  const auto known = addresses_.find(target);
  const std::string address = known == addresses_.end() ? std::string() : known->second;
  auto worker = std::make_unique<RemoteWorker>(inner, endpoint_->GetPeer(target, address), address,
                                               receipts_);
  return workers_.emplace(target, std::move(worker)).first->second.get();
}

void WorkerCache::ReleaseWorker(const std::string& target, tf::WorkerInterface* worker) {
  if (dynamic_cast<RemoteWorker*>(worker) == nullptr) inner_->ReleaseWorker(target, worker);
}

void WorkerCache::SetLogging(bool active) {
  receipts_->SetActive(active);
  inner_->SetLogging(active);
}

void WorkerCache::ClearLogs() {
  receipts_->Clear();
  inner_->ClearLogs();
}

bool WorkerCache::RetrieveLogs(int64_t step_id, tf::StepStats* stats) {
  const bool fallback = inner_->RetrieveLogs(step_id, stats);  // first: it replaces what is there
  const bool by_fabric = receipts_->Take(step_id, stats);
  return fallback || by_fabric;
}

Peer* PeerOf(tf::WorkerCacheInterface* cache, const std::string& task,
             std::shared_ptr<ReceiptLog>* receipts) {
  tf::WorkerInterface* worker = cache->GetOrCreateWorker(task);
  if (worker == nullptr) return nullptr;
  const auto* remote = dynamic_cast<RemoteWorker*>(worker);
  Peer* peer = remote == nullptr ? nullptr : remote->peer();
  if (remote != nullptr && receipts != nullptr) *receipts = remote->receipts();
  cache->ReleaseWorker(task, worker);
  return peer;
}

}  // namespace rdma_transport
