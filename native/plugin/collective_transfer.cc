#include "plugin/collective_transfer.h"

#include <cstring>
#include <functional>
#include <utility>

#include "plugin/device_memory.h"
#include "plugin/status_conversion.h"
#include "plugin/step_errors.h"
#include "protocol/endpoint.h"
#include "protocol/poller.h"

namespace rdma_transport {

namespace tf = tensorflow;

// --- Both ---

bool CollectiveTransfer::Begin() {
  const auto self = std::static_pointer_cast<CollectiveTransfer>(shared_from_this());
  const auto cancel = [self] {
    self->Cancel(absl::CancelledError("a collective's transfer was cancelled"));
  };
  const absl::Status aborted = step_->Track(self);
  if (!aborted.ok()) {
    Cancel(aborted);
  } else if (args_.cancellation != nullptr) {
    token_ = args_.cancellation->get_cancellation_token();
    if (!args_.cancellation->RegisterCallback(token_, cancel)) cancel();
  }
  std::optional<absl::Status> ended;
  {
    std::lock_guard<std::mutex> lock(begin_mu_);
    begun_ = true;
    ended = early_end_;
  }
  if (ended.has_value()) TellTensorFlow(*ended);
  return !ended.has_value();
}

void CollectiveTransfer::Finish(const absl::Status& status) {
  {
    std::lock_guard<std::mutex> lock(begin_mu_);
    if (!begun_) {
      early_end_ = status;
      return;
    }
  }
  TellTensorFlow(status);
}

void CollectiveTransfer::TellTensorFlow(const absl::Status& status) {
  // A callback that is running finds this claimed.
  if (token_ != tf::CancellationManager::kInvalidToken) {
    args_.cancellation->TryDeregisterCallback(token_);
  }
  step_->Untrack(std::static_pointer_cast<CollectiveTransfer>(shared_from_this()));
  args_.done(status);  // `step_` may be destroyed afterwards
}

// --- Fetching ---

void CollectiveFetch::Run(const std::shared_ptr<CollectiveFetch>& fetch, Peer* peer) {
  fetch->wait_.Begin();
  fetch->peer_ = peer;
  // From Begin() on, others can end the transfer, and then the step may go.
  Endpoint* endpoint = fetch->step_->endpoint();
  const int64_t step = fetch->step_->number();
  const BootstrapCall call = fetch->step_->CallFor(peer);
  if (!fetch->Begin()) return;
  endpoint->Receive(peer, step, fetch->args_.key, fetch, call);
  if (fetch->claimed()) endpoint->RemoveRecv(step, fetch->args_.key, fetch.get());
}

void CollectiveFetch::Cancel(const absl::Status& status) {
  if (!Claim()) return;
  Delivery cancelled;
  cancelled.status = FromTensorFlow(status);
  OnDelivery(std::move(cancelled));
}

char* CollectiveFetch::Destination(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mu_);
  const bool fits = tensor_ != nullptr && bytes == bytes_ && !OnDevice();
  return !calling_ && fits ? DataOf(*tensor_) : nullptr;
}

void CollectiveFetch::OnDelivery(Delivery delivery) {
  wait_.EndWait(Profiled());
  // It may still be in the mailbox.
  if (!delivery.status.ok()) step_->endpoint()->RemoveRecv(step_->number(), args_.key, this);
  delivery_ = std::move(delivery);
  bool calling;
  {
    std::lock_guard<std::mutex> lock(mu_);
    over_ = true;
    calling = calling_;
  }
  if (!calling) return End();
  call_.StartCancel();  // its end also ends this transfer
}

void CollectiveFetch::OnUseGrpc(const std::string&) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (over_) return;
    calling_ = true;
  }
  const Nanos begin = Now();
  tf::Tensor* tensor = tensor_;
  if (tensor == nullptr) {
    fetched_ = tf::Tensor(tf::DT_UINT8, tf::TensorShape({static_cast<int64_t>(bytes_)}));
    tensor = &fetched_;
  }
  step_->FetchByGrpc(args_, tensor, &call_, [self = Self(), begin](const absl::Status& status) {
    const bool first = self->Claim();
    if (first) {
      CollectiveStep* step = self->step_;
      step->endpoint()->RemoveRecv(step->number(), self->args_.key, self.get());
      self->wait_.EndWait(self->Profiled());
      if (status.ok()) {
        const ProfiledReceive event(self->Profiled(), self->bytes_, Mode::kGrpc);
        self->peer_->ReceivedByGrpc(*self, step->number(), self->args_.key, self->bytes_, begin);
      }
      return self->Finish(status);
    }
    bool end;
    {
      std::lock_guard<std::mutex> lock(self->mu_);
      self->calling_ = false;
      end = self->over_;
    }
    if (end) self->End();
  });
  if (claimed()) call_.StartCancel();
}

void CollectiveFetch::End() {
  std::function<void()> end = [self = Self()] { self->Take(); };
  if (!delivery_.status.ok() || !Poller::Defer(&end)) end();
}

bool CollectiveFetch::OnDevice() const { return InDeviceMemory(*args_.device, args_.attributes); }

void CollectiveFetch::Take() {
  if (!delivery_.status.ok()) return Finish(ErrorOf(delivery_, peer_task()));
  if (delivery_.bytes != bytes_) {
    return Finish(absl::InternalError("a collective's peer sent " +
                                      std::to_string(delivery_.bytes) + " bytes where " +
                                      std::to_string(bytes_) + " were expected: " + args_.key));
  }
  const bool to_device = tensor_ != nullptr && bytes_ > 0 && OnDevice();
  {
    const ProfiledReceive event(Profiled(), bytes_, delivery_.mode);
    if (tensor_ != nullptr && !to_device) {
      Copy();
      Release();  // before TensorFlow continues
    }
  }
  if (to_device) {
    return CopyToDevice(args_.context, args_.device, std::move(delivery_), *tensor_,
                        [self = Self()](const absl::Status& status) { self->Finish(status); });
  }
  Finish(absl::OkStatus());
}

void CollectiveFetch::Copy() const {
  char* destination = DataOf(*tensor_);
  if (bytes_ == 0 || delivery_.data == destination) return;
  if (bytes_ > kLongWork) Poller::LongWorkAhead();
  std::memcpy(destination, delivery_.data, bytes_);
  if (delivery_.mode != Mode::kInline) {
    GlobalCounters().copied_bytes.fetch_add(bytes_, std::memory_order_relaxed);
  }
}

const char* CollectiveFetch::data() const {
  return delivery_.data != nullptr ? delivery_.data : DataOf(fetched_);
}

void CollectiveFetch::Release() { delivery_ = Delivery(); }

// --- Posting ---

// Sends a buffer over TensorFlow's own transport. Refers to the post, which must outlive it.
class CollectivePost::FallbackOnce final : public FallbackSend {
 public:
  explicit FallbackOnce(std::shared_ptr<CollectivePost> post) : post_(std::move(post)) {}
  Status Send() override {
    post_->SendByGrpc();
    return OkStatus();
  }
  std::unique_ptr<FallbackSend> Keep(bool) override {
    return std::make_unique<FallbackOnce>(post_);
  }
  void Fail(const Status& status) override { post_->End(ToTensorFlow(status, post_->peer_task())); }

 private:
  const std::shared_ptr<CollectivePost> post_;
};

void CollectivePost::StopWatching() {
  step_->endpoint()->RemoveRecv(step_->number(), WatchKey(), this);
}

void CollectivePost::Conclude(const absl::Status& status) {
  StopWatching();
  if (status.ok()) tensor_ = source_ = tf::Tensor();  // what follows may write into it
  Finish(status);
}

void CollectivePost::OnDelivery(Delivery delivery) {
  StopWatching();
  Finish(ErrorOf(delivery, peer_task()));
}

void CollectivePost::Run(const std::shared_ptr<CollectivePost>& post, Peer* peer) {
  // As for a fetch.
  Endpoint* endpoint = post->step_->endpoint();
  const int64_t step = post->step_->number();
  const BootstrapCall call = post->step_->CallFor(peer);
  if (!post->Begin()) return;
  const Status sent = post->Send(peer, step, call);
  if (!sent.ok()) return post->End(ToTensorFlow(sent, post->peer_task()));
  bool released;
  {
    std::lock_guard<std::mutex> lock(post->mu_);
    post->sending_ = false;
    released = post->released_;
  }
  if (released) return post->End(absl::OkStatus());
  endpoint->Watch(peer, step, post->WatchKey(), post);
  if (post->claimed()) endpoint->RemoveRecv(step, post->WatchKey(), post.get());
}

Status CollectivePost::Send(Peer* peer, int64_t step, const BootstrapCall& call) {
  using Holder = std::shared_ptr<CollectivePost>;
  Outgoing outgoing;
  outgoing.step = step;
  outgoing.key = args_.key;
  outgoing.bytes = tensor_.TotalBytes();
  outgoing.data = DataOf(tensor_);
  outgoing.owner = OwnerRef(new Holder(Self()), [](void* held) {
    const std::unique_ptr<Holder> holder(static_cast<Holder*>(held));
    (*holder)->Released();
  });
  outgoing.blocks_until_release = true;
  FallbackOnce fallback(Self());
  ProfiledSend event({step, args_.key, args_.peer_task}, outgoing.bytes);
  std::optional<Mode> mode;
  const Status status = peer->Send(std::move(outgoing), call, &fallback, &mode);
  if (mode.has_value()) event.SetMode(*mode);
  return status;
}

void CollectivePost::SendByGrpc() {
  if (!Claim()) return;
  step_->PostByGrpc(args_, &source_,
                    [self = Self()](const absl::Status& status) { self->Conclude(status); });
}

void CollectivePost::Released() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    released_ = true;
    if (sending_) return;
  }
  End(absl::OkStatus());
}

void CollectivePost::Cancel(const absl::Status& status) {
  End(status);  // over gRPC, TensorFlow cancels its own call
}

}  // namespace rdma_transport
