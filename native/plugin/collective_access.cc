#include "plugin/collective_access.h"

#include <utility>

#include "plugin/bootstrap_call.h"
#include "plugin/collective_steps.h"
#include "plugin/device_collective.h"
#include "plugin/device_memory.h"
#include "plugin/step_errors.h"
#include "plugin/worker_cache.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"

namespace rdma_transport {

namespace tf = tensorflow;

CollectiveAccess::CollectiveAccess(const tf::DeviceMgr* devices,
                                   tf::DeviceResolverInterface* resolver,
                                   std::shared_ptr<tf::UnboundedWorkQueue> queue,
                                   std::shared_ptr<tf::WorkerCacheInterface> cache, int64_t step,
                                   std::string task, Endpoint* endpoint)
    : CollectiveRemoteAccessDistributed(devices, resolver, std::move(queue), cache.get(), step,
                                        std::move(task)),
      endpoint_(endpoint),
      cache_(std::move(cache)) {}

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
  Peer* peer = peer_is_local ? nullptr : PeerFor(peer_task);
  if (peer == nullptr) {
    return CollectiveRemoteAccessDistributed::RecvFromPeer(
        peer_device, peer_task, peer_is_local, key, to_device, to_device_ctx, to_alloc_attr,
        to_tensor, locality, dev_to_dev_stream_index, cancellation, done);
  }
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
  const bool on_device = InDeviceMemory(*from_device, from_alloc_attr);
  Peer* peer = PeerFor(peer_task);
  if (peer == nullptr || (on_device && peer->by_grpc())) {
    return PostByGrpc(args, from_tensor, done);
  }
  if (on_device) {
    return PostFromDevice(this, args, *from_tensor, dev_mgr_->HostCPU()->GetAllocator({}), peer);
  }
  CollectivePost::Run(
      std::make_shared<CollectivePost>(this, std::move(args), *from_tensor, *from_tensor), peer);
}

std::shared_ptr<CollectiveFetch> CollectiveAccess::FetchInPlace(const CollectiveTransferArgs& args,
                                                                uint64_t bytes) {
  Peer* peer = PeerFor(args.peer_task);
  if (peer == nullptr) {
    args.done(absl::FailedPreconditionError("the cluster has no other task " + args.peer_task));
    return nullptr;
  }
  auto fetch = std::make_shared<CollectiveFetch>(this, args, bytes);
  CollectiveFetch::Run(fetch, peer);
  return fetch;
}

std::string CollectiveAccess::TransportTo(const std::string& task) {
  const Peer* peer = PeerFor(task);
  return peer == nullptr ? "grpc" : peer->transport();
}

void CollectiveAccess::StartAbort(const absl::Status& status) {
  std::set<std::shared_ptr<CollectiveTransfer>> ending;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!aborted_.ok()) return;
    aborted_ = status;
    ending = transfers_;
  }
  endpoint_->AbortStep(number(), EncodeError(status));
  CollectiveRemoteAccessDistributed::StartAbort(status);
  for (const auto& transfer : ending) transfer->Cancel(status);
}

int64_t CollectiveAccess::number() const { return StepOfCollectives(step_id_); }

Peer* CollectiveAccess::PeerFor(const std::string& task) {
  std::lock_guard<std::mutex> lock(mu_);
  const auto [entry, created] = peers_.try_emplace(task);
  if (created && task != task_name_) entry->second = PeerOf(cache_.get(), task);
  return entry->second;
}

BootstrapCall CollectiveAccess::CallFor(const Peer* peer) {
  return BootstrapOver(cache_, peer, dev_mgr_->ListDevices().front());
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

absl::Status CollectiveAccess::Track(const std::shared_ptr<CollectiveTransfer>& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  if (aborted_.ok()) transfers_.insert(transfer);
  return aborted_;
}

void CollectiveAccess::Untrack(const std::shared_ptr<CollectiveTransfer>& transfer) {
  std::lock_guard<std::mutex> lock(mu_);
  transfers_.erase(transfer);
}

}  // namespace rdma_transport
