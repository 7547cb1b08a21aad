// TensorFlow's stubs of remote workers, each with the Peer for the same task. While a worker runs a
// graph for this task, its peer is watched.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "plugin/receipt_log.h"
#include "protocol/endpoint.h"
#include "tensorflow/core/distributed_runtime/worker_cache_wrapper.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/protobuf/cluster.pb.h"

namespace rdma_transport {

class RemoteWorker;

// Thread-safe. `endpoint` must outlive it. It keeps one stub for each task, for as long as it
// lives: not all that TensorFlow asks for are released.
class WorkerCache final : public tensorflow::WorkerCacheWrapper {
 public:
  // Owns `inner`. `cluster` has the address of each task. `self` is this task's name in it, which
  // may differ from the server's.
  WorkerCache(std::unique_ptr<tensorflow::WorkerCacheInterface> inner, Endpoint* endpoint,
              std::string self, const tensorflow::ClusterDef& cluster);
  ~WorkerCache() override;

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

  std::mutex mu_;
  std::map<std::string, std::unique_ptr<RemoteWorker>> workers_;  // by task
};

// Returns the peer for a task of `cache`, or null if it is the local one or not in the cluster. If
// it is not null, sets where tensors from that task are recorded.
Peer* PeerOf(tensorflow::WorkerCacheInterface* cache, const std::string& task,
             std::shared_ptr<ReceiptLog>* receipts = nullptr);

}  // namespace rdma_transport
