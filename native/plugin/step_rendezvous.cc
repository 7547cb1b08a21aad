#include "plugin/step_rendezvous.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plugin/bootstrap_call.h"
#include "plugin/device_names.h"
#include "plugin/mutable_buffers.h"
#include "plugin/profile.h"
#include "plugin/status_conversion.h"
#include "plugin/worker_cache.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_env.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/types.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// What a peer's card may read.
struct ReadInPlace {
  tf::Tensor tensor;
  std::shared_ptr<fabric::Region> region;

  static void Delete(void* self) { delete static_cast<ReadInPlace*>(self); }
};

void UnrefBuffer(void* buffer) { static_cast<tf::TensorBuffer*>(buffer)->Unref(); }

}  // namespace

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
  return BootstrapOver(session()->GetSharedWorkerCache(), peer,
                       env_->device_mgr->ListDevices().front());
}

const char* StepRendezvous::NotCarried(const tf::Tensor& tensor) {
  if (tensor.dtype() == tf::DT_STRING) return "a string tensor";
  if (tensor.dtype() == tf::DT_VARIANT) return "a variant tensor";
  if (tensor.dtype() == tf::DT_RESOURCE) return "a resource handle";
  if (!tf::DMAHelper::CanUseDMA(&tensor)) return "a type without plain bytes";
  return nullptr;
}

absl::Status StepRendezvous::SendToPeer(Peer* peer, const ParsedKey& key, const tf::Tensor& tensor,
                                        bool is_dead, FallbackSend* fallback,
                                        std::shared_ptr<const EdgePlan> plan) {
  Outgoing outgoing;
  outgoing.plan = std::move(plan);
  outgoing.dead = is_dead;
  outgoing.not_carried = NotCarried(tensor);
  outgoing.bytes = tensor.IsInitialized() ? tensor.TotalBytes() : 0;
  if (outgoing.not_carried == nullptr && outgoing.bytes > 0) {
    auto* buffer = const_cast<tf::TensorBuffer*>(tf::DMAHelper::buffer(&tensor));
    outgoing.data = static_cast<const char*>(tf::DMAHelper::base(&tensor));
    outgoing.block = static_cast<const char*>(buffer->root_buffer()->data());
    outgoing.mutable_source = MutableBuffers::Get().Contains(outgoing.block);
    buffer->Ref();
    outgoing.owner = OwnerRef(buffer, &UnrefBuffer);
  }
  return SendWith(std::move(outgoing), peer, key, tensor, fallback);
}

absl::Status StepRendezvous::SendInPlace(Peer* peer, const ParsedKey& key, const tf::Tensor& tensor,
                                         std::shared_ptr<fabric::Region> region,
                                         FallbackSend* fallback, bool* sent) {
  Outgoing outgoing;
  outgoing.on_device = true;
  outgoing.bytes = tensor.TotalBytes();
  outgoing.data = static_cast<const char*>(tf::DMAHelper::base(&tensor));
  outgoing.owner = OwnerRef(new ReadInPlace{tensor, std::move(region)}, &ReadInPlace::Delete);
  Dimensions dims;
  Address(key, tensor, &dims, &outgoing);
  const uint64_t bytes = outgoing.bytes;
  ProfiledSend event({step_id_, key.FullKey(), peer->task()}, bytes);
  const Status status = peer->SendFromDevice(std::move(outgoing), fallback, sent);
  if (status.ok() && *sent) {
    event.SetMode(Mode::kDynamic);
    GlobalCounters().device_direct_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  return ToTensorFlow(status, peer->task());
}

absl::Status StepRendezvous::SendWith(Outgoing outgoing, Peer* peer, const ParsedKey& key,
                                      const tf::Tensor& tensor, FallbackSend* fallback) {
  Dimensions dims;
  Address(key, tensor, &dims, &outgoing);
  ProfiledSend event({step_id_, key.FullKey(), peer->task()}, outgoing.bytes);
  std::optional<Mode> mode;
  const Status status = peer->Send(std::move(outgoing), CallFor(peer), fallback, &mode);
  if (mode.has_value()) event.SetMode(*mode);
  return ToTensorFlow(status, peer->task());
}

void StepRendezvous::Address(const ParsedKey& key, const tf::Tensor& tensor, Dimensions* dims,
                             Outgoing* outgoing) const {
  for (int i = 0; i < tensor.dims(); ++i) dims->push_back(tensor.dim_size(i));
  outgoing->step = step_id_;
  outgoing->key = std::string_view(key.FullKey().data(), key.FullKey().size());
  outgoing->dtype = static_cast<uint32_t>(tensor.dtype());
  outgoing->dims = dims->data();
  outgoing->rank = static_cast<int>(dims->size());
}

absl::Status StepRendezvous::AbortStatus() {
  std::lock_guard<std::mutex> lock(mu_);
  return aborted_;
}

void StepRendezvous::StartAbort(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    aborted_.Update(status);
  }
  BaseRemoteRendezvous::StartAbort(status);
}

bool StepRendezvous::OnlyProcessors() const {
  const auto devices = env_->device_mgr->ListDevices();
  return std::all_of(devices.begin(), devices.end(), [](const tf::Device* device) {
    return device->device_type() == tf::DEVICE_CPU;
  });
}

void StepRendezvous::FailSend(const ParsedKey& key, const absl::Status& status,
                              FallbackSend* fallback) {
  Peer* peer = IsRemoteEagerContextDefault() ? PeerFor(key.dst_device) : nullptr;
  if (peer == nullptr) return StartAbort(status);
  const std::string_view full(key.FullKey().data(), key.FullKey().size());
  peer->FailSend(step_id_, full, FromTensorFlow(status), fallback);
}

tf::Allocator* StepRendezvous::HostAllocator() const {
  return env_->device_mgr->HostCPU()->GetAllocator({});
}

}  // namespace rdma_transport
