// A pending _Recv. It ends with the tensor, when the peer is lost, or when the step is aborted,
// whichever comes first, and calls TensorFlow back exactly once.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plugin/direct_destination.h"
#include "plugin/profile.h"
#include "plugin/receipt_log.h"
#include "plugin/step_rendezvous.h"
#include "protocol/pending_recv.h"
#include "tensorflow/core/distributed_runtime/base_rendezvous_mgr.h"
#include "tensorflow/core/distributed_runtime/call_options.h"

namespace rdma_transport {

// Thread-safe. Lives at least until it has called TensorFlow back.
class RecvCall final : public tensorflow::BaseRecvTensorCall, public PendingRecv {
 public:
  // `direct`: the memory of the accelerator that `args` want the tensor in. Null: the host's
  // memory.
  RecvCall(StepRendezvous* rendezvous, const tensorflow::Rendezvous::ParsedKey& key,
           const tensorflow::Rendezvous::Args& args, tensorflow::Rendezvous::DoneCallback done,
           std::shared_ptr<DirectDestination> direct);
  ~RecvCall() override;

  // Registers with the step and asks the endpoint for the tensor.
  static void Run(std::shared_ptr<RecvCall> call);

  // BaseRecvTensorCall. StartAbort() is called with TensorFlow's locks held.
  void Start(std::function<void()>) override {}
  void StartAbort(const absl::Status& status) override;
  absl::Status status() const override;

  // PendingRecv:
  void PrepareDestination(const Delivery& delivery, bool copied,
                          std::function<void(char* destination)> read) override;
  void OnDelivery(Delivery delivery) override;
  void OnUseGrpc(const std::string& reason) override;

 private:
  struct GrpcFetch;

  // The RecvTensor call, made at `begin`, has ended.
  void EndFetch(const absl::Status& status, Nanos begin);

  std::shared_ptr<RecvCall> Self() {
    return std::static_pointer_cast<RecvCall>(PendingRecv::shared_from_this());
  }
  absl::Status TensorFrom(Delivery* delivery, tensorflow::Tensor* tensor) const;
  // Whether the tensor may lie in a producer's memory, or in a slot.
  bool MayShare() const;
  ProfiledTensor Profiled() const;
  // Takes the tensor where it belongs, and finishes. Only the caller that claimed this may call it.
  void Place(const absl::Status& status, const tensorflow::Tensor& tensor, bool dead);
  // Calls TensorFlow back, when no RecvTensor call of this uses the session any more. Only the
  // caller that claimed this may call it.
  void Finish(const absl::Status& status, const tensorflow::Tensor& tensor, bool dead);

  // TensorFlow holds it until `done_` returns. OnUseGrpc() may still run then, on another thread.
  const tsl::core::RefCountPtr<StepRendezvous> rendezvous_;
  const tensorflow::Rendezvous::ParsedKey key_;
  const tensorflow::Rendezvous::Args args_;
  tensorflow::AllocatorAttributes attributes_;  // of the host's memory to which it comes
  tensorflow::Rendezvous::DoneCallback done_;
  const std::shared_ptr<DirectDestination> direct_;
  tensorflow::Device* device_ = nullptr;
  Peer* peer_ = nullptr;
  std::shared_ptr<ReceiptLog> receipts_;  // null if nothing is recorded
  int64_t begin_micros_ = 0;              // for `receipts_`
  ProfiledSpan wait_;

  mutable std::mutex mu_;
  absl::Status status_;
  std::shared_ptr<GrpcFetch> fetch_;
  std::function<void()> finish_;  // what the end of `fetch_` calls
};

}  // namespace rdma_transport
