#include "plugin/recv_call.h"

#include <cstring>
#include <utility>

#include "plugin/cpu_device.h"
#include "plugin/device_names.h"
#include "plugin/eager_clients.h"
#include "plugin/owned_buffer.h"
#include "plugin/step_errors.h"
#include "plugin/wire_tensor.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/distributed_runtime/request_id.h"
#include "tensorflow/core/distributed_runtime/tensor_coding.h"
#include "tensorflow/core/distributed_runtime/worker_cache.h"
#include "tensorflow/core/distributed_runtime/worker_interface.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/protobuf/worker.pb.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// TensorFlow aborts the process if a tensor's memory is not aligned like this.
constexpr uintptr_t kAlignment = 64;

}  // namespace

// A RecvTensor call of TensorFlow. It uses the session, which may be gone once the RecvCall ends.
struct RecvCall::GrpcFetch {
  std::shared_ptr<tf::WorkerCacheInterface> cache;
  std::string task;
  tf::WorkerInterface* worker = nullptr;
  tf::CallOptions options;
  tf::RecvTensorRequest request;
  tf::TensorResponse response;
  bool ended = false;  // guarded by RecvCall::mu_
};

RecvCall::RecvCall(StepRendezvous* rendezvous, const tf::Rendezvous::ParsedKey& key,
                   const tf::Rendezvous::Args& args, tf::Rendezvous::DoneCallback done,
                   std::shared_ptr<DirectDestination> direct)
    : rendezvous_(tsl::core::GetNewRef(rendezvous)),
      key_(key),
      args_(args),
      attributes_(args.alloc_attrs),
      done_(std::move(done)),
      direct_(std::move(direct)) {
  if (key.dst.type == tf::DEVICE_CPU) return;
  attributes_.set_on_host(true);
  attributes_.set_gpu_compatible(true);
}

RecvCall::~RecvCall() = default;

void RecvCall::Run(std::shared_ptr<RecvCall> call) {
  StepRendezvous* rendezvous = call->rendezvous_.get();
  const auto fail = [&](const absl::Status& status) {
    if (call->Claim())
      call->done_(status, tf::Rendezvous::Args(), call->args_, tf::Tensor(), false);
  };
  absl::Status found =
      rendezvous->session()->device_mgr()->LookupDevice(call->key_.dst_device, &call->device_);
  if (!found.ok()) return fail(found);
  Peer* peer = rendezvous->PeerFor(call->key_.src_device, &call->receipts_);
  call->peer_ = peer;
  if (peer == nullptr) {
    return fail(absl::InternalError("no worker known as " + std::string(call->key_.src_device)));
  }
  if (call->receipts_ != nullptr) call->begin_micros_ = tf::Env::Default()->NowMicros();
  Endpoint* endpoint = rendezvous->endpoint();
  const int64_t step = rendezvous->step_id();
  BootstrapCall bootstrap = rendezvous->CallFor(peer);
  call->wait_.Begin();
  // From now on an abort may end the call, and TensorFlow then the session.
  rendezvous->RegisterCall(call.get(), call->args_);
  // Already aborted: StartAbort() ends the call.
  if (!call->status().ok()) return;
  endpoint->Receive(peer, step, call->key_.FullKey(), call, std::move(bootstrap));
  // An abort in between could not remove it before it was registered.
  if (call->claimed()) endpoint->RemoveRecv(step, call->key_.FullKey(), call.get());
}

void RecvCall::StartAbort(const absl::Status& status) {
  // TensorFlow holds no reference, and Claim() may drop the last one.
  const std::shared_ptr<RecvCall> self = Self();
  {
    std::lock_guard<std::mutex> lock(mu_);
    status_.Update(status);
  }
  if (!Claim()) return;
  // Runs elsewhere, because the caller holds locks that the callback needs.
  tf::Env::Default()->SchedClosure([self] {
    self->rendezvous_->endpoint()->RemoveRecv(self->rendezvous_->step_id(), self->key_.FullKey(),
                                              self.get());
    self->wait_.EndWait(self->Profiled());
    self->Finish(self->status(), tf::Tensor(), false);
  });
}

ProfiledTensor RecvCall::Profiled() const {
  return {rendezvous_->step_id(), key_.FullKey(), peer_->task()};
}

absl::Status RecvCall::status() const {
  std::lock_guard<std::mutex> lock(mu_);
  return status_;
}

void RecvCall::Place(const absl::Status& status, const tf::Tensor& tensor, bool dead) {
  wait_.EndWait(Profiled());
  if (direct_ == nullptr || !status.ok() || dead || tensor.NumElements() == 0 ||
      direct_->Holds(tf::DMAHelper::base(&tensor))) {
    return Finish(status, tensor, dead);
  }
  direct_->Fill(tensor, [self = Self()](const absl::Status& filled, const tf::Tensor& on_device) {
    self->Finish(filled, on_device, /*dead=*/false);
  });
}

void RecvCall::Finish(const absl::Status& status, const tf::Tensor& tensor, bool dead) {
  std::shared_ptr<GrpcFetch> fetch;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (fetch_ != nullptr && !fetch_->ended) {
      fetch = fetch_;
      finish_ = [this, status, tensor, dead] { Finish(status, tensor, dead); };
    }
  }
  if (fetch != nullptr) return fetch->options.StartCancel();
  rendezvous_->DeregisterCall(this, args_);
  const tf::Rendezvous::DoneCallback done = std::move(done_);
  done(status, tf::Rendezvous::Args(), args_, tensor, dead);
}

void RecvCall::PrepareDestination(const Delivery& delivery, bool copied,
                                  std::function<void(char*)> read) {
  if (direct_ == nullptr) return read(nullptr);
  direct_->Prepare(delivery, copied, std::move(read));
}

void RecvCall::OnDelivery(Delivery delivery) {
  const std::shared_ptr<RecvCall> self = Self();
  tf::Tensor tensor;
  const bool dead = delivery.dead;
  absl::Status status;
  if (!delivery.status.ok()) status = ErrorOf(delivery, WorkerOf(key_.src_device));
  if (absl::IsDataLoss(status)) {
    status = absl::DataLossError(std::string(status.message()) +
                                 "; edge: " + std::string(key_.FullKey()));
  }
  if (status.ok()) {
    const ProfiledReceive event(Profiled(), delivery.bytes, delivery.mode);
    status = TensorFrom(&delivery, &tensor);
    if (receipts_ != nullptr && status.ok()) {
      receipts_->Add(rendezvous_->step_id(), key_, begin_micros_, tf::Env::Default()->NowMicros(),
                     tensor.TotalBytes());
    }
  } else {
    rendezvous_->endpoint()->RemoveRecv(rendezvous_->step_id(), key_.FullKey(), this);
  }
  Place(status, tensor, dead);
}

absl::Status RecvCall::TensorFrom(Delivery* delivery, tf::Tensor* tensor) const {
  const absl::string_view key = key_.FullKey();
  WireTensor described;
  const absl::Status checked =
      CheckWireTensor(delivery->dtype, delivery->dims, delivery->bytes, key, &described);
  if (!checked.ok()) return checked;
  const auto& [dtype, shape] = described;
  if (delivery->bytes == 0) {
    *tensor = tf::Tensor(dtype, shape);
    return absl::OkStatus();
  }
  if (direct_ != nullptr && direct_->Holds(delivery->data)) return direct_->Take(tensor);
  if (reinterpret_cast<uintptr_t>(delivery->data) % kAlignment != 0) {
    return absl::DataLossError("a tensor that is not aligned: " + std::string(key));
  }
  if (direct_ != nullptr && delivery->read_later && direct_->WouldHold(*delivery)) {
    delivery->read_later.Send();
  }
  const bool own = delivery->exclusive && delivery->mode != Mode::kStatic;
  if (!own && !MayShare()) {
    tf::Tensor copy(device_->GetAllocator(attributes_), dtype, shape);
    if (!copy.IsInitialized()) return absl::ResourceExhaustedError("no memory for a tensor");
    std::memcpy(tf::DMAHelper::base(&copy), delivery->data, delivery->bytes);
    GlobalCounters().copied_bytes.fetch_add(delivery->bytes, std::memory_order_relaxed);
    *tensor = std::move(copy);
    return absl::OkStatus();
  }
  tf::core::RefCountPtr<tf::TensorBuffer> buffer(new OwnedBuffer(
      delivery->data, delivery->bytes, std::move(delivery->owner), delivery->exclusive));
  *tensor = tf::Tensor(dtype, shape, std::move(buffer));
  return absl::OkStatus();
}

// Devices other than ours do not keep kernels from writing into a producer's memory, or from
// keeping a slot. They may use eager tensors, too, and a program may write into its own, through
// DLPack.
bool RecvCall::MayShare() const {
  if (direct_ != nullptr) return true;  // it is copied to the device
  // A client's session or eager context wraps the device, to give it another name.
  if (dynamic_cast<CpuDevice*>(device_->UnderlyingDevice()) == nullptr) return false;
  const bool in_graph = args_.alloc_attrs.nic_compatible();
  if (in_graph) return true;
  return !EagerClients::Get().Contains(static_cast<uint64_t>(rendezvous_->step_id())) &&
         rendezvous_->OnlyProcessors();
}

void RecvCall::OnUseGrpc(const std::string& reason) {
  auto fetch = std::make_shared<GrpcFetch>();
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (!status_.ok() || claimed()) return;
    fetch_ = fetch;
  }
  const std::shared_ptr<RecvCall> self = Self();
  fetch->cache = rendezvous_->session()->GetSharedWorkerCache();
  fetch->task = std::string(WorkerOf(key_.src_device));
  fetch->worker = fetch->cache->GetOrCreateWorker(fetch->task);
  if (fetch->worker == nullptr) {
    return EndFetch(absl::InternalError("no worker known as " + fetch->task), Now());
  }
  fetch->request.set_step_id(rendezvous_->step_id());
  fetch->request.set_rendezvous_key(std::string(key_.FullKey()));
  fetch->request.set_request_id(tf::GetUniqueRequestId());
  fetch->response.InitAlloc(device_, attributes_);
  // Finish() may cancel the call until it ends, even from inside this function.
  fetch->worker->RecvTensorAsync(&fetch->options, &fetch->request, &fetch->response,
                                 [self, fetch, begin = Now()](const absl::Status& status) {
                                   fetch->cache->ReleaseWorker(fetch->task, fetch->worker);
                                   self->EndFetch(status, begin);
                                 });
  // Otherwise a cancellation from before the call could be cancelled would be lost.
  if (claimed()) fetch->options.StartCancel();
}

void RecvCall::EndFetch(const absl::Status& status, Nanos begin) {
  std::function<void()> finish;
  {
    std::lock_guard<std::mutex> lock(mu_);
    fetch_->ended = true;
    finish = std::exchange(finish_, nullptr);
  }
  if (finish != nullptr) return finish();
  if (!Claim()) return;  // what claimed it calls Finish()
  rendezvous_->endpoint()->RemoveRecv(rendezvous_->step_id(), key_.FullKey(), this);
  const tf::Tensor& tensor = fetch_->response.tensor();
  if (status.ok()) {
    const ProfiledReceive event(Profiled(), tensor.TotalBytes(), Mode::kGrpc);
    peer_->ReceivedByGrpc(*this, rendezvous_->step_id(), key_.FullKey(), tensor.TotalBytes(),
                          begin);
  }
  Place(status, tensor, fetch_->response.metadata().is_dead());
}

}  // namespace rdma_transport
