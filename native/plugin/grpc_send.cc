#include "plugin/grpc_send.h"

#include <utility>

#include "plugin/device_names.h"
#include "plugin/status_conversion.h"
#include "tensorflow/core/framework/tensor_util.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

// What a kept send refers to, and so destroyed after it.
struct SendCopies {
  SendCopies(StepRendezvous* step, const tf::Rendezvous::ParsedKey& parsed,
             const tf::Rendezvous::Args& arguments, tf::Tensor sent)
      : rendezvous(tsl::core::GetNewRef(step)),
        key(parsed),
        args(arguments),
        tensor(std::move(sent)) {
    if (args.device_context != nullptr) context = tsl::core::GetNewRef(args.device_context);
  }

  tsl::core::RefCountPtr<StepRendezvous> rendezvous;
  tf::Rendezvous::ParsedKey key;
  tf::Rendezvous::Args args;
  tsl::core::RefCountPtr<tf::DeviceContext> context;
  tf::Tensor tensor;
};

class KeptGrpcSend final : private SendCopies, public GrpcSend {
 public:
  KeptGrpcSend(SendCopies copies, bool dead)
      : SendCopies(std::move(copies)), GrpcSend(rendezvous.get(), key, args, tensor, dead) {}
};

}  // namespace

Status GrpcSend::Send() {
  return FromTensorFlow(rendezvous_->SendByGrpc(key_, args_, tensor_, dead_));
}

std::unique_ptr<FallbackSend> GrpcSend::Keep(bool copy) {
  return std::make_unique<KeptGrpcSend>(
      SendCopies(rendezvous_, key_, args_, copy ? tf::tensor::DeepCopy(tensor_) : tensor_), dead_);
}

void GrpcSend::Fail(const Status& status) {
  rendezvous_->FailSend(key_, ToTensorFlow(status, WorkerOf(key_.dst_device)), this);
}

}  // namespace rdma_transport
