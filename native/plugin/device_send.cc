#include "plugin/device_send.h"

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "plugin/accelerators.h"
#include "plugin/allocation_site.h"
#include "plugin/chunks.h"
#include "plugin/device_memory.h"
#include "plugin/grpc_send.h"
#include "protocol/wire.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

using ParsedKey = tf::Rendezvous::ParsedKey;
using SendHostTensor =
    std::function<absl::Status(StepRendezvous* rendezvous, const tf::Tensor& copy)>;

// Calls `send` with a copy in the host's memory. `fallback` sends the device's tensor.
void CopyAndSend(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& tensor,
                 const std::shared_ptr<FallbackSend>& fallback, SendHostTensor send) {
  const std::string_view full(key.FullKey().data(), key.FullKey().size());
  const std::string site = StagingSite(WithoutSuffix(full));
  tf::Tensor copy;
  {
    const ScopedAllocationSite allocation(site);
    copy = tf::Tensor(route.rendezvous->HostAllocator(), tensor.dtype(), tensor.shape());
  }
  const std::shared_ptr<StepRendezvous> rendezvous(tsl::core::GetNewRef(route.rendezvous));
  if (!copy.IsInitialized()) {
    const absl::Status status = absl::ResourceExhaustedError(
        "no memory of the host for a copy of a tensor of " + route.device->name());
    return rendezvous->FailSend(key, status, fallback.get());
  }
  CopyToHost(route.context, route.device, tensor, copy,
             [rendezvous, key, copy, fallback, send = std::move(send)](absl::Status status) {
               if (status.ok()) status = rendezvous->AbortStatus();
               if (status.ok()) status = send(rendezvous.get(), copy);
               if (!status.ok()) rendezvous->FailSend(key, status, fallback.get());
             });
}

void SendChunk(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& chunk) {
  tf::Rendezvous::Args on_device;
  on_device.device_context = route.context;
  const std::shared_ptr<FallbackSend> fallback =
      GrpcSend(route.rendezvous, key, on_device, chunk, /*dead=*/false).Keep(/*copy=*/false);
  CopyAndSend(route, key, chunk, fallback,
              [peer = route.peer, plan = route.plan, key](StepRendezvous* rendezvous,
                                                          const tf::Tensor& copy) {
                tf::Rendezvous::Args on_host;
                on_host.alloc_attrs.set_on_host(true);
                GrpcSend of_copy(rendezvous, key, on_host, copy, /*dead=*/false);
                return rendezvous->SendToPeer(peer, key, copy, /*is_dead=*/false, &of_copy, plan);
              });
}

void SendCopy(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& tensor,
              bool is_dead, FallbackSend* fallback) {
  const bool whole = is_dead || key.dst.type == tf::DEVICE_CPU;
  const int chunks = whole ? 1 : ChunksOf(tensor.TotalBytes());
  if (chunks == 1) {
    const std::shared_ptr<FallbackSend> kept(fallback->Keep(/*copy=*/false));
    return CopyAndSend(route, key, tensor, kept,
                       [peer = route.peer, plan = route.plan, key, is_dead, kept](
                           StepRendezvous* rendezvous, const tf::Tensor& copy) {
                         return rendezvous->SendToPeer(peer, key, copy, is_dead, kept.get(), plan);
                       });
  }
  const absl::Status announced = route.rendezvous->Announce(route.peer, key, tensor, fallback);
  if (!announced.ok()) return route.rendezvous->FailSend(key, announced, fallback);
  for (int i = 0; i < chunks; ++i) SendChunk(route, KeyOfChunk(key, i), ChunkOf(tensor, i));
}

// A tensor that the peer's card reads where it lies, once the device has computed it.
struct SendInPlace {
  tsl::core::RefCountPtr<StepRendezvous> rendezvous;
  tsl::core::RefCountPtr<tf::DeviceContext> context;  // may be null
  const DeviceRoute route;
  const ParsedKey key;
  const tf::Tensor tensor;
  const std::shared_ptr<fabric::Region> region;
  const std::unique_ptr<FallbackSend> fallback;

  void Run() const {
    absl::Status status = rendezvous->AbortStatus();
    bool sent = true;
    if (status.ok()) {
      status = rendezvous->SendInPlace(route.peer, key, tensor, region, fallback.get(), &sent);
    }
    if (!status.ok()) return rendezvous->FailSend(key, status, fallback.get());
    if (!sent) SendCopy(route, key, tensor, /*is_dead=*/false, fallback.get());
  }
};

// Returns false if the tensor must be copied.
bool StartInPlace(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& tensor,
                  FallbackSend* fallback) {
  if (!route.peer->ReadsDevices()) return false;
  std::shared_ptr<fabric::Region> region = RegisterForCards(tensor);
  if (region == nullptr) return false;
  const std::shared_ptr<SendInPlace> send(
      new SendInPlace{tsl::core::GetNewRef(route.rendezvous),
                      route.context == nullptr ? nullptr : tsl::core::GetNewRef(route.context),
                      route, key, tensor, std::move(region), fallback->Keep(/*copy=*/false)});
  return AfterDevice(route.context, route.device, [send] { send->Run(); }).ok();
}

}  // namespace

void SendFromDevice(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& tensor,
                    bool is_dead, FallbackSend* fallback) {
  if (!is_dead && StartInPlace(route, key, tensor, fallback)) return;
  SendCopy(route, key, tensor, is_dead, fallback);
}

}  // namespace rdma_transport
