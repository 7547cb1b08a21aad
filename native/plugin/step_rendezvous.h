// The peers of one step's rendezvous, and what its pending receives use of it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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

 private:
  struct Known {
    std::string task;
    Peer* peer;
    std::shared_ptr<ReceiptLog> receipts;
  };

  Endpoint* const endpoint_;

  std::mutex mu_;
  // The rendezvous of a client's eager tensors outlives an update of the client's cluster, which
  // brings another cache with other peers under the same names.
  std::weak_ptr<tensorflow::WorkerCacheInterface> peers_of_;
  std::vector<Known> peers_;
};

}  // namespace rdma_transport
