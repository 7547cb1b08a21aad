#include "tensorflow/collective_access.h"

#include <cstring>
#include <utility>

#include "tensorflow/bootstrap_call.h"
#include "tensorflow/collective_steps.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/worker_cache.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// Under which a task announces that it has aborted a step.
std::string AbortKeyOf(const std::string& task) { return "aborted by " + task; }

std::string Encode(const absl::Status& status) {
  return std::string(1, static_cast<char>(status.code())) + std::string(status.message());
}

absl::Status Decode(const char* data, size_t length) {
  if (length == 0) return absl::AbortedError("");
  const auto code = static_cast<absl::StatusCode>(data[0]);
  return absl::Status(code == absl::StatusCode::kOk ? absl::StatusCode::kAborted : code,
                      absl::string_view(data + 1, length - 1));
}

}  // namespace

// Waits for a peer's word that it has aborted the step.
class CollectiveAccess::AbortWatch final : public Waiter {
 public:
  AbortWatch(CollectiveAccess* access, std::string task)
      : access_(access), task_(std::move(task)) {}

  // The access is going.
  void End() {
    std::lock_guard<std::mutex> lock(mu_);
    access_ = nullptr;
  }

  void OnDelivery(Delivery delivery) override {
    if (!delivery.status.ok()) return;  // the peer is lost, and its transfers end by themselves
    const absl::Status status = Decode(delivery.data, delivery.bytes);
    std::vector<std::shared_ptr<CollectiveTransfer>> ending;
    {
      std::lock_guard<std::mutex> lock(mu_);
      if (access_ != nullptr) ending = access_->OnPeerAborted(task_, status);
    }
    for (const auto& transfer : ending) transfer->Cancel(status);
  }
  void OnUseGrpc(const std::string&) override {}  // whose calls hear of an abort

 private:
  std::mutex mu_;
  CollectiveAccess* access_;
  const std::string task_;
};

CollectiveAccess::CollectiveAccess(const tf::DeviceMgr* devices,
                                   tf::DeviceResolverInterface* resolver,
                                   std::shared_ptr<tf::UnboundedWorkQueue> queue,
                                   std::shared_ptr<tf::WorkerCacheInterface> cache, int64_t step,
                                   std::string task, Endpoint* endpoint)
    : CollectiveRemoteAccessDistributed(devices, resolver, std::move(queue), cache.get(), step,
                                        std::move(task)),
      endpoint_(endpoint),
      cache_(std::move(cache)) {}

CollectiveAccess::~CollectiveAccess() {
  for (const auto& [task, known] : peers_) {
    if (known.watch == nullptr) continue;
    known.watch->End();
    if (known.watch->Claim()) endpoint_->Forget(step(), AbortKeyOf(task), known.watch.get());
  }
}

void CollectiveAccess::RecvFromPeer(const std::string& peer_device, const std::string& peer_task,
                                    bool peer_is_local, const std::string& key,
                                    tf::Device* to_device, tf::DeviceContext* to_device_ctx,
                                    const tf::AllocatorAttributes& to_alloc_attr,
                                    tf::Tensor* to_tensor, const tf::DeviceLocality& locality,
                                    int dev_to_dev_stream_index,
                                    tf::CancellationManager* cancellation,
                                    const tf::StatusCallback& done) {
  CollectiveTransferArgs args = {peer_device,   peer_task,     key,      to_device,
                                 to_device_ctx, to_alloc_attr, locality, dev_to_dev_stream_index,
                                 cancellation,  done};
  Peer* peer = peer_is_local || to_device->device_type() != "CPU" ? nullptr : PeerFor(peer_task);
  if (peer == nullptr) {
    return CollectiveRemoteAccessDistributed::RecvFromPeer(
        peer_device, peer_task, peer_is_local, key, to_device, to_device_ctx, to_alloc_attr,
        to_tensor, locality, dev_to_dev_stream_index, cancellation, done);
  }
  WatchForAbort(peer);
  CollectiveFetch::Run(std::make_shared<CollectiveFetch>(this, std::move(args), to_tensor), peer);
}

void CollectiveAccess::PostToPeer(const std::string& peer_device, const std::string& peer_task,
                                  const std::string& key, tf::Device* from_device,
                                  tf::DeviceContext* from_device_ctx,
                                  const tf::AllocatorAttributes& from_alloc_attr,
                                  const tf::Tensor* from_tensor, const tf::DeviceLocality& locality,
                                  tf::CancellationManager* cancellation,
                                  const tf::StatusCallback& done) {
  CollectiveTransferArgs args = {peer_device,     peer_task, key, from_device,  from_device_ctx,
                                 from_alloc_attr, locality,  0,   cancellation, done};
  Peer* peer = from_device->device_type() != "CPU" ? nullptr : PeerFor(peer_task);
  if (peer == nullptr) return PostByGrpc(args, from_tensor, done);
  WatchForAbort(peer);
  CollectivePost::Run(std::make_shared<CollectivePost>(this, std::move(args), *from_tensor), peer);
}

void CollectiveAccess::StartAbort(const absl::Status& status) {
  std::set<std::shared_ptr<CollectiveTransfer>> ending;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!aborted_.ok()) return;
    aborted_ = status;
    ending = transfers_;
  }
  endpoint_->Announce(step(), AbortKeyOf(task_name_), Encode(status));
  CollectiveRemoteAccessDistributed::StartAbort(status);
  for (const auto& transfer : ending) transfer->Cancel(status);
}

int64_t CollectiveAccess::step() const { return StepOfCollectives(step_id_); }

Peer* CollectiveAccess::PeerFor(const std::string& task) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto [entry, created] = peers_.try_emplace(task);
  if (created && task != task_name_) {
    tf::WorkerInterface* worker = cache_->GetOrCreateWorker(task);
    if (worker != nullptr) {
      entry->second.peer = PeerOf(worker);
      cache_->ReleaseWorker(task, worker);
    }
  }
  return entry->second.peer;
}

BootstrapCall CollectiveAccess::CallFor(const Peer* peer) {
  // This may be gone when the call ends.
  return [cache = cache_, peer, device = dev_mgr_->ListDevices().front()](
             std::string request, Nanos timeout, std::function<void(Status, std::string)> done) {
    CallBootstrap(cache, peer->task(), device, std::move(request), timeout, std::move(done));
  };
}

void CollectiveAccess::FetchByGrpc(const CollectiveTransferArgs& args, tf::Tensor* tensor,
                                   tf::CancellationManager* cancellation,
                                   const tf::StatusCallback& done) {
  CollectiveRemoteAccessDistributed::RecvFromPeer(
      args.peer_device, args.peer_task, /*peer_is_local=*/false, args.key, args.device,
      args.context, args.attributes, tensor, args.locality, args.stream, cancellation, done);
}

void CollectiveAccess::PostByGrpc(const CollectiveTransferArgs& args, const tf::Tensor* tensor,
                                  const tf::StatusCallback& done) {
  CollectiveRemoteAccessDistributed::PostToPeer(args.peer_device, args.peer_task, args.key,
                                                args.device, args.context, args.attributes, tensor,
                                                args.locality, args.cancellation, done);
}

absl::Status CollectiveAccess::Track(const std::shared_ptr<CollectiveTransfer>& transfer,
                                     const std::string& peer) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!aborted_.ok()) return aborted_;
  const absl::Status& aborted = peers_[peer].aborted;
  if (aborted.ok()) transfers_.insert(transfer);
  return aborted;
}

void CollectiveAccess::Untrack(const std::shared_ptr<CollectiveTransfer>& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  transfers_.erase(transfer);
}

void CollectiveAccess::WatchForAbort(Peer* peer) {
  const std::string& task = peer->task();
  std::shared_ptr<AbortWatch> watch, past;
  {
    std::lock_guard<std::mutex> lock(mu_);
    Known& known = peers_[task];
    // One that was claimed is of a life of the peer that has ended.
    if (known.watch != nullptr && !known.watch->claimed()) return;
    past = std::exchange(known.watch, std::make_shared<AbortWatch>(this, task));
    watch = known.watch;
  }
  if (past != nullptr) endpoint_->Forget(step(), AbortKeyOf(task), past.get());
  endpoint_->Receive(peer, step(), AbortKeyOf(task), watch, CallFor(peer));
}

std::vector<std::shared_ptr<CollectiveTransfer>> CollectiveAccess::OnPeerAborted(
    const std::string& task, const absl::Status& status) {
  std::vector<std::shared_ptr<CollectiveTransfer>> ending;
  std::lock_guard<std::mutex> lock(mu_);
  peers_[task].aborted = status;
  for (const auto& transfer : transfers_) {
    if (transfer->peer_task() == task) ending.push_back(transfer);
  }
  return ending;
}

}  // namespace rdma_transport
