// The peers of one step's rendezvous, and how its tensors are sent to them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "plugin/receipt_log.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"

namespace rdma_transport {

// Thread-safe.
class StepRendezvous : public tensorflow::BaseRemoteRendezvous {
 public:
  StepRendezvous(const tensorflow::WorkerEnv* env, int64_t step_id, Endpoint* endpoint)
      : BaseRemoteRendezvous(env, step_id), endpoint_(endpoint) {}

  using BaseRemoteRendezvous::DeregisterCall;
  using BaseRemoteRendezvous::RegisterCall;
  using BaseRemoteRendezvous::session;
  int64_t step_id() const { return step_id_; }
  Endpoint* endpoint() const { return endpoint_; }

  // Returns the peer of a remote device, or null if the session's cluster has none. Sets `receipts`
  // to where its tensors are recorded, or to null.
  Peer* PeerFor(absl::string_view device, std::shared_ptr<ReceiptLog>* receipts = nullptr);
  // Returns the call that bootstraps a link to the peer. It must be made before the rendezvous
  // ends.
  BootstrapCall CallFor(const Peer* peer);

  // Sends a tensor that lies in the host's memory. `plan`: see Outgoing.
  absl::Status SendToPeer(Peer* peer, const ParsedKey& key, const tensorflow::Tensor& tensor,
                          bool is_dead, FallbackSend* fallback,
                          std::shared_ptr<const EdgePlan> plan);
  // Lets the peer's card read a tensor of a device, registered as `region`, where it lies. See
  // Peer::SendFromDevice().
  absl::Status SendInPlace(Peer* peer, const ParsedKey& key, const tensorflow::Tensor& tensor,
                           std::shared_ptr<fabric::Region> region, FallbackSend* fallback,
                           bool* sent);
  // TensorFlow's own Send(), which keeps the tensor for a RecvTensor call.
  absl::Status SendByGrpc(const ParsedKey& key, const tensorflow::Rendezvous::Args& args,
                          const tensorflow::Tensor& tensor, bool is_dead) {
    return BaseRemoteRendezvous::Send(key, args, tensor, is_dead);
  }
  // Sending the tensor has failed after its kernel ended. Aborts the step. An eager context, whose
  // copies are all of one step, goes on: only the receiver of this tensor fails.
  void FailSend(const ParsedKey& key, const absl::Status& status, FallbackSend* fallback);
  // Returns why the fabric cannot carry this tensor, or null if it can.
  static const char* NotCarried(const tensorflow::Tensor& tensor);

  // Aborts the step. AbortStatus() is the first error since then.
  void StartAbort(const absl::Status& status) override;
  absl::Status AbortStatus();
  // Returns whether the task has no accelerators.
  bool OnlyProcessors() const;
  // Returns the allocator of tensors in the host's memory.
  tensorflow::Allocator* HostAllocator() const;

 private:
  absl::Status SendWith(Outgoing outgoing, Peer* peer, const ParsedKey& key,
                        const tensorflow::Tensor& tensor, FallbackSend* fallback);
  using Dimensions = absl::InlinedVector<int64_t, 8>;
  // `dims` and `key` must outlive the result's use.
  void Address(const ParsedKey& key, const tensorflow::Tensor& tensor, Dimensions* dims,
               Outgoing* outgoing) const;

  struct Known {
    std::string task;
    Peer* peer;
    std::shared_ptr<ReceiptLog> receipts;
  };

  Endpoint* const endpoint_;

  std::mutex mu_;
  absl::Status aborted_;
  // The rendezvous of a client's eager tensors outlives an update of the client's cluster, which
  // brings another cache with other peers under the same names.
  std::weak_ptr<tensorflow::WorkerCacheInterface> peers_of_;
  std::vector<Known> peers_;
};

}  // namespace rdma_transport
