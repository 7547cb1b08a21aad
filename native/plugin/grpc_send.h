// Sends a tensor by TensorFlow's own rendezvous, where a RecvTensor call of the peer finds it.
#pragma once

#include <memory>

#include "plugin/step_rendezvous.h"
#include "protocol/tensor.h"

namespace rdma_transport {

// Refers to its arguments. Keep() returns one that does not.
class GrpcSend : public FallbackSend {
 public:
  GrpcSend(StepRendezvous* rendezvous, const tensorflow::Rendezvous::ParsedKey& key,
           const tensorflow::Rendezvous::Args& args, const tensorflow::Tensor& tensor, bool dead)
      : rendezvous_(rendezvous), key_(key), args_(args), tensor_(tensor), dead_(dead) {}

  Status Send() override;
  std::unique_ptr<FallbackSend> Keep(bool copy) override;
  void Fail(const Status& status) override;

 private:
  StepRendezvous* const rendezvous_;
  const tensorflow::Rendezvous::ParsedKey& key_;
  const tensorflow::Rendezvous::Args& args_;
  const tensorflow::Tensor& tensor_;
  const bool dead_;
};

}  // namespace rdma_transport
