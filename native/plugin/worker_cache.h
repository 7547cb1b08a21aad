// TensorFlow's stubs of remote workers, each with the Peer that stands for the same task, and with
// an eye on the peer while it runs a graph for this task.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "plugin/receipt_log.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/cluster.pb.h"

namespace rdma_transport {

class WorkerCache final : public tensorflow::WorkerCacheWrapper {
 public:
  // Owns `inner`. `cluster` gives the address of each task; in it this task is called `self`, which
  // need not be what the server was called.
  WorkerCache(std::unique_ptr<tensorflow::WorkerCacheInterface> inner, Endpoint* endpoint,
              std::string self, const tensorflow::ClusterDef& cluster);

  tensorflow::WorkerInterface* GetOrCreateWorker(const std::string& target) override;
  void ReleaseWorker(const std::string& target, tensorflow::WorkerInterface* worker) override;

  void SetLogging(bool active) override;
  void ClearLogs() override;
  bool RetrieveLogs(int64_t step_id, tensorflow::StepStats* stats) override;

 private:
  std::unique_ptr<tensorflow::WorkerCacheInterface> inner_;
  Endpoint* const endpoint_;
  const std::string self_;
  const std::shared_ptr<ReceiptLog> receipts_ = std::make_shared<ReceiptLog>();
  std::map<std::string, std::string> addresses_;
};

// The peer behind a stub that a WorkerCache made; null for the local task's.
Peer* PeerOf(tensorflow::WorkerInterface* worker);
// Where its cache notes what comes from that task; null for the local task's.
std::shared_ptr<ReceiptLog> ReceiptsOf(tensorflow::WorkerInterface* worker);

}  // namespace rdma_transport
