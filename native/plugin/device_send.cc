#include "plugin/device_send.h"

#include <memory>
#include <string_view>
#include <utility>

#include "plugin/accelerators.h"
#include "plugin/allocation_site.h"
#include "plugin/device_memory.h"
#include "plugin/grpc_send.h"
#include "protocol/wire.h"

namespace rdma_transport {
namespace {

namespace tf = tensorflow;

using ParsedKey = tf::Rendezvous::ParsedKey;

// Sends a copy in the host's memory.
void SendCopy(const DeviceRoute& route, const ParsedKey& key, const tf::Tensor& tensor,
              bool is_dead, FallbackSend* fallback) {
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
    return rendezvous->FailSend(key, status, fallback);
  }
  const std::shared_ptr<FallbackSend> kept = fallback->Keep(/*copy=*/false);
  CopyToHost(route.context, route.device, tensor, copy,
             [rendezvous, copy, peer = route.peer, plan = route.plan, key, is_dead,
              kept](absl::Status status) {
               if (status.ok()) status = rendezvous->AbortStatus();
               if (status.ok()) {
                 status = rendezvous->SendToPeer(peer, key, copy, is_dead, kept.get(), plan);
               }
               if (!status.ok()) rendezvous->FailSend(key, status, kept.get());
             });
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
