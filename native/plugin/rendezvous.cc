#include "plugin/rendezvous.h"

#include <memory>
#include <string>
#include <utility>

#include "fabric/fabric.h"
#include "plugin/device_memory.h"
#include "plugin/device_send.h"
#include "plugin/direct_destination.h"
#include "plugin/grpc_send.h"
#include "plugin/recv_call.h"
#include "plugin/send_op.h"
#include "plugin/step_errors.h"
#include "protocol/counters.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/distributed_runtime/worker_session.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

bool CarriesBytes(const tf::Tensor& tensor) {
  return StepRendezvous::NotCarried(tensor) == nullptr && tensor.IsInitialized() &&
         tensor.TotalBytes() > 0;
}

// Only our CPU device keeps kernels from writing into slices of a producer's memory.
tf::Tensor ForDeviceOfTask(const tf::DeviceNameUtils::ParsedName& device,
                           const tf::Tensor& tensor) {
  if (device.type == tf::DEVICE_CPU || !fabric::IsMapped(tf::DMAHelper::base(&tensor))) {
    return tensor;
  }
  GlobalCounters().copied_bytes.fetch_add(tensor.TotalBytes(), std::memory_order_relaxed);
  return tf::tensor::DeepCopy(tensor);
}

}  // namespace

absl::Status Rendezvous::Send(const ParsedKey& key, const tf::Rendezvous::Args& args,
                              const tf::Tensor& tensor, bool is_dead) {
  if (tf::DeviceNameUtils::IsSameAddressSpace(key.src, key.dst)) {
    return SendByGrpc(key, args, ForDeviceOfTask(key.dst, tensor), is_dead);
  }
  const absl::Status aborted = AbortStatus();
  if (!aborted.ok()) return aborted;
  Peer* peer = PeerFor(key.dst_device);
  if (peer == nullptr) return SendByGrpc(key, args, tensor, is_dead);

  GrpcSend fallback(this, key, args, tensor, is_dead);
  tf::Device* device = nullptr;
  if (key.src.type != tf::DEVICE_CPU && CarriesBytes(tensor)) {
    const absl::Status found = session()->device_mgr()->LookupDevice(key.src_device, &device);
    if (!found.ok()) return found;
  }
  if (device != nullptr && InDeviceMemory(*device, args.alloc_attrs)) {
    if (peer->by_grpc()) return SendByGrpc(key, args, tensor, is_dead);
    SendFromDevice({this, peer, device, args.device_context, PlanOfSend()}, key, tensor, is_dead,
                   &fallback);
    return absl::OkStatus();
  }
  const absl::Status sent = SendToPeer(peer, key, tensor, is_dead, &fallback, PlanOfSend());
  // The executor does not treat _Send as communication: it would replace Unavailable by Internal,
  // from which no program recovers.
  return absl::IsUnavailable(sent) ? absl::AbortedError(sent.message()) : sent;
}

void Rendezvous::StartAbort(const absl::Status& status) {
  StepRendezvous::StartAbort(status);
  // Marked as in the base class: derived errors must not hide their causes.
  const bool derived = absl::IsCancelled(status) || absl::IsAborted(status);
  endpoint()->AbortStep(step_id_,
                        EncodeError(derived ? tsl::StatusGroup::MakeDerived(status) : status));
}

void Rendezvous::RecvFromRemoteAsync(const ParsedKey& parsed, const tf::Rendezvous::Args& args,
                                     DoneCallback done) {
  std::shared_ptr<DirectDestination> in_device;
  if (parsed.dst.type != tf::DEVICE_CPU) {
    tf::Device* device = nullptr;
    const absl::Status found = session()->device_mgr()->LookupDevice(parsed.dst_device, &device);
    if (!found.ok()) return done(found, tf::Rendezvous::Args(), args, tf::Tensor(), false);
    if (InDeviceMemory(*device, args.alloc_attrs)) {
      in_device =
          std::make_shared<DirectDestination>(device, args.device_context, args.alloc_attrs);
    }
  }
  RecvCall::Run(
      std::make_shared<RecvCall>(this, parsed, args, std::move(done), std::move(in_device)));
}

void RendezvousMgr::RecvLocalAsync(int64_t step_id, const tf::Rendezvous::ParsedKey& parsed,
                                   tf::Rendezvous::DoneCallback done) {
  BaseRendezvousMgr::RecvLocalAsync(
      step_id, parsed,
      [this, step_id, key = std::string(parsed.FullKey()), done = std::move(done)](
          const absl::Status& status, const tf::Rendezvous::Args& send_args,
          const tf::Rendezvous::Args& recv_args, const tf::Tensor& tensor, bool is_dead) {
        if (status.ok()) endpoint_->Fetched(step_id, key);
        done(status, send_args, recv_args, tensor, is_dead);
      });
}

void RendezvousMgr::Cleanup(int64_t step_id) {
  endpoint_->EndStep(step_id);
  BaseRendezvousMgr::Cleanup(step_id);
}

tsl::core::RefCountPtr<tf::BaseRemoteRendezvous> RendezvousMgr::Create(int64_t step_id,
                                                                       const tf::WorkerEnv* env) {
  return tsl::core::RefCountPtr<tf::BaseRemoteRendezvous>(new Rendezvous(env, step_id, endpoint_));
}

}  // namespace rdma_transport
