#include "plugin/step_rendezvous.h"

#include <utility>

#include "plugin/bootstrap_call.h"
#include "plugin/device_names.h"
#include "plugin/worker_cache.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"

namespace rdma_transport {

namespace tf = tensorflow;

Peer* StepRendezvous::PeerFor(absl::string_view device, std::shared_ptr<ReceiptLog>* receipts) {
  tf::WorkerSession* session = this->session();
  if (session == nullptr) return nullptr;
  const absl::string_view task = WorkerOf(device);
  const std::shared_ptr<tf::WorkerCacheInterface> cache = session->GetSharedWorkerCache();
  std::lock_guard<std::mutex> lock(mu_);
  if (peers_of_.owner_before(cache) || cache.owner_before(peers_of_)) {
    peers_.clear();
    peers_of_ = cache;
  }
  for (const Known& known : peers_) {
    if (known.task != task) continue;
    if (receipts != nullptr && known.receipts->active()) *receipts = known.receipts;
    return known.peer;
  }
  const std::string name(task);
  std::shared_ptr<ReceiptLog> log;
  Peer* peer = PeerOf(cache.get(), name, &log);
  if (peer == nullptr) return nullptr;
  if (receipts != nullptr && log->active()) *receipts = log;
  peers_.push_back({name, peer, std::move(log)});
  return peer;
}

BootstrapCall StepRendezvous::CallFor(const Peer* peer) {
  return [this, peer](std::string request, Nanos timeout,
                      std::function<void(Status, std::string)> done) {
    CallBootstrap(session()->GetSharedWorkerCache(), peer->task(),
                  env_->device_mgr->ListDevices().front(), std::move(request), timeout,
                  std::move(done));
  };
}

}  // namespace rdma_transport
