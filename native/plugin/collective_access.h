// How TensorFlow's collectives reach other tasks. A posted buffer is announced to the peer at once,
// and the peer reads it in place.
//
// What the fabric cannot carry falls back to TensorFlow's RecvBuf call. Aborting a step here also
// aborts it in the protocol, so that peers do not wait for buffers that will not be posted.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "plugin/collective_transfer.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/collective_rma_distributed.h"

namespace rdma_transport {

// The access of one step. Thread-safe.
class CollectiveAccess final : public tensorflow::CollectiveRemoteAccessDistributed,
                               public CollectiveStep {
 public:
  CollectiveAccess(const tensorflow::DeviceMgr* devices,
                   tensorflow::DeviceResolverInterface* resolver,
                   std::shared_ptr<tensorflow::UnboundedWorkQueue> queue,
                   std::shared_ptr<tensorflow::WorkerCacheInterface> cache, int64_t step,
                   std::string task, Endpoint* endpoint);

  void RecvFromPeer(const std::string& peer_device, const std::string& peer_task,
                    bool peer_is_local, const std::string& key, tensorflow::Device* to_device,
                    tensorflow::DeviceContext* to_device_ctx,
                    const tensorflow::AllocatorAttributes& to_alloc_attr,
                    tensorflow::Tensor* to_tensor, const tensorflow::DeviceLocality& locality,
                    int dev_to_dev_stream_index, tensorflow::CancellationManager* cancellation,
                    const tensorflow::StatusCallback& done) override;
  void PostToPeer(const std::string& peer_device, const std::string& peer_task,
                  const std::string& key, tensorflow::Device* from_device,
                  tensorflow::DeviceContext* from_device_ctx,
                  const tensorflow::AllocatorAttributes& from_alloc_attr,
                  const tensorflow::Tensor* from_tensor, const tensorflow::DeviceLocality& locality,
                  tensorflow::CancellationManager* cancellation,
                  const tensorflow::StatusCallback& done) override;
  void StartAbort(const absl::Status& status) override;

  // Fetches `bytes` bytes that another task posts, in place. Calls `args.done` once. Returns null
  // after an error, which `args.done` gets, if the cluster has no such task.
  std::shared_ptr<CollectiveFetch> FetchInPlace(const CollectiveTransferArgs& args, uint64_t bytes);

  // Returns what carries buffers to and from another task now: the name of a fabric, or "grpc".
  std::string TransportTo(const std::string& task);

 private:
  Peer* PeerFor(const std::string& task);

  // CollectiveStep:
  Endpoint* endpoint() const override { return endpoint_; }
  int64_t number() const override;
  BootstrapCall CallFor(const Peer* peer) override;
  void FetchByGrpc(const CollectiveTransferArgs& args, tensorflow::Tensor* tensor,
                   tensorflow::CancellationManager* cancellation,
                   const tensorflow::StatusCallback& done) override;
  void PostByGrpc(const CollectiveTransferArgs& args, const tensorflow::Tensor* tensor,
                  const tensorflow::StatusCallback& done) override;
  absl::Status Track(const std::shared_ptr<CollectiveTransfer>& transfer) override;
  void Untrack(const std::shared_ptr<CollectiveTransfer>& transfer) override;

  Endpoint* const endpoint_;
  // Owns what the base class points to.
  const std::shared_ptr<tensorflow::WorkerCacheInterface> cache_;

  std::mutex mu_;
  absl::Status aborted_;
  std::map<std::string, Peer*> peers_;  // by task; null for this task
  std::set<std::shared_ptr<CollectiveTransfer>> transfers_;
};

}  // namespace rdma_transport
