// Connects TensorFlow's _Send and _Recv between tasks to the transport.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plugin/receipt_log.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"

namespace rdma_transport {

class RendezvousMgr final : public tensorflow::BaseRendezvousMgr {
 public:
  RendezvousMgr(const tensorflow::WorkerEnv* env, Endpoint* endpoint)
      : BaseRendezvousMgr(env), endpoint_(endpoint) {}

  // Serves a RecvTensor call of a peer.
  void RecvLocalAsync(int64_t step_id, const tensorflow::Rendezvous::ParsedKey& parsed,
                      tensorflow::Rendezvous::DoneCallback done) override;
  void Cleanup(int64_t step_id) override;

 protected:
  tsl::core::RefCountPtr<tensorflow::BaseRemoteRendezvous> Create(
      int64_t step_id, const tensorflow::WorkerEnv* env) override;

 private:
  Endpoint* const endpoint_;
};

// The rendezvous of one step. Thread-safe.
class Rendezvous final : public tensorflow::BaseRemoteRendezvous {
 public:
  Rendezvous(const tensorflow::WorkerEnv* env, int64_t step_id, Endpoint* endpoint)
      : BaseRemoteRendezvous(env, step_id), endpoint_(endpoint) {}

  // Sends the tensor to its task at once, without a request.
  absl::Status Send(const ParsedKey& key, const tensorflow::Rendezvous::Args& args,
                    const tensorflow::Tensor& tensor, bool is_dead) override;
  // Also notifies all peers. Over gRPC, their pending calls would fail; here there are no such
  // calls.
  void StartAbort(const absl::Status& status) override;

  // TensorFlow's own Send(), which keeps the tensor for a RecvTensor call.
  absl::Status SendByGrpc(const ParsedKey& key, const tensorflow::Rendezvous::Args& args,
                          const tensorflow::Tensor& tensor, bool is_dead) {
    return BaseRemoteRendezvous::Send(key, args, tensor, is_dead);
  }

 protected:
  void RecvFromRemoteAsync(const ParsedKey& parsed, const tensorflow::Rendezvous::Args& args,
                           DoneCallback done) override;

 private:
  friend class RecvCall;

  struct Known {
    std::string task;
    Peer* peer;
    std::shared_ptr<ReceiptLog> receipts;
  };

  // Returns the peer of a remote device, or null if the session's cluster has none. Sets `receipts`
  // to where its tensors are recorded, or to null.
  Peer* PeerFor(absl::string_view device, std::shared_ptr<ReceiptLog>* receipts = nullptr);
  BootstrapCall CallFor(const Peer* peer);

  Endpoint* const endpoint_;

  std::mutex mu_;
  absl::Status aborted_;
  // The rendezvous of a client's eager tensors outlives an update of the client's cluster, which
  // brings another cache with other peers under the same names.
  std::weak_ptr<tensorflow::WorkerCacheInterface> peers_of_;
  std::vector<Known> peers_;
};

}  // namespace rdma_transport
