// One buffer of a collective, sent to or received from another task. Each transfer reports its end
// to TensorFlow exactly once: by the fabric, by gRPC, when the peer is lost, when it is cancelled,
// or when its step is aborted, whichever comes first.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "plugin/profile.h"
#include "protocol/endpoint.h"
#include "protocol/pending_recv.h"
#include "tensorflow/core/framework/collective.h"

namespace rdma_transport {

// Copying or combining more bytes takes longer than handing polling to another thread, which peers
// then wake by system calls. Members of one host may have no other processor to poll on.
inline constexpr uint64_t kLongWork = 512 << 10;

// Returns the bytes of a tensor, which the caller may write if it owns them.
inline char* DataOf(const tensorflow::Tensor& tensor) {
  return const_cast<char*>(tensor.tensor_data().data());
}

// TensorFlow's arguments of a transfer. The pointers are valid until `done` is called.
struct CollectiveTransferArgs {
  std::string peer_device;
  std::string peer_task;
  std::string key;
  tensorflow::Device* device = nullptr;
  tensorflow::DeviceContext* context = nullptr;
  tensorflow::AllocatorAttributes attributes;
  tensorflow::DeviceLocality locality;
  int stream = 0;
  tensorflow::CancellationManager* cancellation = nullptr;  // may be null
  tensorflow::StatusCallback done;
};

class CollectiveTransfer;

// The step that a transfer belongs to. Thread-safe.
class CollectiveStep {
 public:
  // Outlives the step.
  virtual Endpoint* endpoint() const = 0;
  // The number of the step in the protocol.
  virtual int64_t number() const = 0;
  // Returns the call that bootstraps a link to the peer. It may be made after the step has ended.
  virtual BootstrapCall CallFor(const Peer* peer) = 0;
  // These use TensorFlow's own transport, and call `done` exactly once, on any thread. The tensor
  // must live until then.
  virtual void FetchByGrpc(const CollectiveTransferArgs& args, tensorflow::Tensor* tensor,
                           tensorflow::CancellationManager* cancellation,
                           const tensorflow::StatusCallback& done) = 0;
  virtual void PostByGrpc(const CollectiveTransferArgs& args, const tensorflow::Tensor* tensor,
                          const tensorflow::StatusCallback& done) = 0;
  // Registers a transfer. Returns an error if the step was aborted here; the transfer must then not
  // begin.
  virtual absl::Status Track(const std::shared_ptr<CollectiveTransfer>& transfer) = 0;
  // Removes a transfer that has ended. Does nothing if it is not registered.
  virtual void Untrack(const std::shared_ptr<CollectiveTransfer>& transfer) = 0;

 protected:
  ~CollectiveStep() = default;
};

// Thread-safe.
class CollectiveTransfer : public PendingRecv {
 public:
  // Ends the transfer with `status` unless it has ended.
  virtual void Cancel(const absl::Status& status) = 0;
  const std::string& peer_task() const { return args_.peer_task; }

 protected:
  // `step` must live until `done` has been called.
  CollectiveTransfer(CollectiveStep* step, CollectiveTransferArgs args)
      : step_(step), args_(std::move(args)) {}

  // Allows abort and cancellation to end this. Returns false if it has already ended.
  bool Begin();
  // Calls `done`. Only the caller that claimed this may call it.
  void Finish(const absl::Status& status);

  ProfiledTensor Profiled() const { return {step_->number(), args_.key, args_.peer_task}; }

  CollectiveStep* const step_;
  const CollectiveTransferArgs args_;

 private:
  void TellTensorFlow(const absl::Status& status);

  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
  std::mutex begin_mu_;
  bool begun_ = false;
  std::optional<absl::Status> early_end_;  // if it ended while `args_` was still needed
};

// Receives a peer's buffer, into `tensor` or in place.
class CollectiveFetch final : public CollectiveTransfer {
 public:
  CollectiveFetch(CollectiveStep* step, CollectiveTransferArgs args, tensorflow::Tensor* tensor)
      : CollectiveTransfer(step, std::move(args)), tensor_(tensor), bytes_(tensor->TotalBytes()) {}
  // Receives `bytes` bytes in place: in the peer's memory if that is mapped, otherwise in memory of
  // this object.
  CollectiveFetch(CollectiveStep* step, CollectiveTransferArgs args, uint64_t bytes)
      : CollectiveTransfer(step, std::move(args)), tensor_(nullptr), bytes_(bytes) {}

  static void Run(const std::shared_ptr<CollectiveFetch>& fetch, Peer* peer);

  // In place: the bytes, from `done` without an error until Release(), which lets the peer reuse
  // them. Call neither before `done`.
  const char* data() const;
  void Release();

  void Cancel(const absl::Status& status) override;
  char* Destination(uint64_t bytes) override;
  void OnDelivery(Delivery delivery) override;
  void OnUseGrpc(const std::string& reason) override;

 private:
  std::shared_ptr<CollectiveFetch> Self() {
    return std::static_pointer_cast<CollectiveFetch>(shared_from_this());
  }
  // Ends with `delivery_`. Nothing else may be writing into `tensor_`.
  void End();
  bool OnDevice() const;
  void Take();
  void Copy() const;

  tensorflow::Tensor* const tensor_;  // null: in place
  const uint64_t bytes_;
  tensorflow::Tensor fetched_;  // in place, over gRPC
  Peer* peer_ = nullptr;
  ProfiledSpan wait_;
  std::mutex mu_;
  bool calling_ = false;  // a gRPC call may be writing into `tensor_`
  bool over_ = false;
  Delivery delivery_;
  tensorflow::CancellationManager call_;
};

// Offers a buffer to a peer until the peer has released it.
class CollectivePost final : public CollectiveTransfer {
 public:
  // `source` is TensorFlow's buffer, which it sends itself over gRPC; `tensor` has the same bytes
  // in the host's memory.
  CollectivePost(CollectiveStep* step, CollectiveTransferArgs args,
                 const tensorflow::Tensor& tensor, const tensorflow::Tensor& source)
      : CollectiveTransfer(step, std::move(args)), tensor_(tensor), source_(source) {}

  static void Run(const std::shared_ptr<CollectivePost>& post, Peer* peer);

  void Cancel(const absl::Status& status) override;
  void OnDelivery(Delivery delivery) override;  // when the peer is lost or aborts the step
  void OnUseGrpc(const std::string&) override {}

 private:
  class FallbackOnce;

  std::shared_ptr<CollectivePost> Self() {
    return std::static_pointer_cast<CollectivePost>(shared_from_this());
  }
  Status Send(Peer* peer, int64_t step, const BootstrapCall& call);
  // From here on, only the call over gRPC ends this.
  void SendByGrpc();
  void Released();
  void End(const absl::Status& status) {
    if (Claim()) Conclude(status);
  }
  // The caller has claimed this.
  void Conclude(const absl::Status& status);
  // The key under which this watches for the peer's abort. No tensor is ever sent under it.
  std::string WatchKey() const { return "posted: " + args_.key; }
  void StopWatching();

  // Keep the bytes alive until the peer has released them. They also stay unchanged, because
  // TensorFlow writes only into tensors with one reference, even if it was given an error while the
  // peer still reads.
  tensorflow::Tensor tensor_;
  tensorflow::Tensor source_;
  std::mutex mu_;
  bool sending_ = true;
  bool released_ = false;
};

}  // namespace rdma_transport
