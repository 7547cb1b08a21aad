// One buffer of a collective on its way to or from another task. Each tells TensorFlow exactly once
// that it has ended: by the fabric, by gRPC, with the peer's loss, by cancellation or by the abort
// of its step, whichever comes first.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "protocol/peer.h"
#include "protocol/pending_recv.h"
#include "tensorflow/core/framework/collective.h"

namespace rdma_transport {

// What TensorFlow says of a transfer. The pointers are valid until `done` is called.
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

// The step of which a transfer is a part. Thread-safe.
class CollectiveStep {
 public:
  virtual Endpoint* endpoint() const = 0;
  virtual int64_t number() const = 0;
  virtual BootstrapCall CallFor(const Peer* peer) = 0;
  // By TensorFlow's own transport.
  virtual void FetchByGrpc(const CollectiveTransferArgs& args, tensorflow::Tensor* tensor,
                           tensorflow::CancellationManager* cancellation,
                           const tensorflow::StatusCallback& done) = 0;
  virtual void PostByGrpc(const CollectiveTransferArgs& args, const tensorflow::Tensor* tensor,
                          const tensorflow::StatusCallback& done) = 0;
  // Not OK: the step was aborted here, and nothing begins any more.
  virtual absl::Status Track(const std::shared_ptr<CollectiveTransfer>& transfer) = 0;
  virtual void Untrack(const std::shared_ptr<CollectiveTransfer>& transfer) = 0;

 protected:
  ~CollectiveStep() = default;
};

class CollectiveTransfer : public PendingRecv {
 public:
  // Ends it with an error, if it has not ended.
  virtual void Cancel(const absl::Status& status) = 0;
  const std::string& peer_task() const { return args_.peer_task; }

 protected:
  // `step` outlives the call of `done`.
  CollectiveTransfer(CollectiveStep* step, CollectiveTransferArgs args)
      : step_(step), args_(std::move(args)) {}

  // Lets abort and cancellation end this from here on. False: it has ended already.
  bool Begin();
  // Only for who claimed this.
  void Finish(const absl::Status& status);

  CollectiveStep* const step_;
  const CollectiveTransferArgs args_;

 private:
  void TellTensorFlow(const absl::Status& status);

  tensorflow::CancellationToken token_ = tensorflow::CancellationManager::kInvalidToken;
  std::mutex begin_mu_;
  bool begun_ = false;
  std::optional<absl::Status> early_end_;  // while `args_` was still being used to begin
};

// Waits for a peer's buffer and puts it into `tensor`.
class CollectiveFetch final : public CollectiveTransfer {
 public:
  CollectiveFetch(CollectiveStep* step, CollectiveTransferArgs args, tensorflow::Tensor* tensor)
      : CollectiveTransfer(step, std::move(args)), tensor_(tensor) {}

  static void Run(const std::shared_ptr<CollectiveFetch>& fetch, Peer* peer);

  void Cancel(const absl::Status& status) override;
  char* Destination(uint64_t bytes) override;
  void OnDelivery(Delivery delivery) override;
  void OnUseGrpc(const std::string& reason) override;

 private:
  std::shared_ptr<CollectiveFetch> Self() {
    return std::static_pointer_cast<CollectiveFetch>(shared_from_this());
  }
  // With what is in `delivery_`; nobody else writes into `tensor_`.
  void End();
  absl::Status Copy();

  tensorflow::Tensor* const tensor_;
  Peer* peer_ = nullptr;
  std::mutex mu_;
  bool calling_ = false;  // gRPC, which may write into `tensor_`
  bool over_ = false;
  Delivery delivery_;
  tensorflow::CancellationManager call_;
};

// Offers a buffer to a peer, until it has let go of it.
class CollectivePost final : public CollectiveTransfer {
 public:
  CollectivePost(CollectiveStep* step, CollectiveTransferArgs args,
                 const tensorflow::Tensor& tensor)
      : CollectiveTransfer(step, std::move(args)), tensor_(tensor) {}

  static void Run(const std::shared_ptr<CollectivePost>& post, Peer* peer);

  void Cancel(const absl::Status& status) override;
  void OnDelivery(Delivery delivery) override;  // of the peer's loss, or of its abort
  void OnUseGrpc(const std::string&) override {}

 private:
  class FallbackOnce;

  std::shared_ptr<CollectivePost> Self() {
    return std::static_pointer_cast<CollectivePost>(shared_from_this());
  }
  Status Send(Peer* peer);
  void SendByGrpc();
  void Released();
  void End(const absl::Status& status);
  // Under which this waits for the peer's abort. Nothing is ever sent under it.
  std::string WatchKey() const { return "posted: " + args_.key; }
  void StopWatching();

  // Keeps the bytes alive and, because nobody writes into a tensor that is not his alone, as they
  // are, also when TensorFlow has heard of an error and the peer still reads.
  const tensorflow::Tensor tensor_;
  std::mutex mu_;
  bool sending_ = true;
  bool released_ = false;
  bool by_grpc_ = false;
};

}  // namespace rdma_transport
