// Striped devices over one, two and three loopback devices, as fabrics.
#include <memory>
#include <utility>
#include <vector>

#include "fabric/registry.h"
#include "fabric/striped/device.h"
#include "loopback_fabric/device.h"

namespace rdma_transport::testing {
namespace {

constexpr const char* kNames[] = {"onerail", "tworails", "threerails"};

template <int kRails>
Status OpenStriped(const Settings& settings, std::unique_ptr<fabric::Device>* device) {
  std::vector<std::unique_ptr<fabric::Device>> rails(kRails);
  for (auto& rail : rails) RDMA_RETURN_IF_ERROR(LoopbackDevice::Create(settings, &rail));
  fabric::striped::StripedSettings striped;
  striped.peer_timeout = settings.peer_timeout;
  return fabric::striped::StripedDevice::Create(kNames[kRails - 1], std::move(rails), striped,
                                                device);
}

template <int kRails>
constexpr fabric::Registration Striped() {
  return {kNames[kRails - 1], "peers in this process, by several rails",
          [](const Settings& settings, std::vector<fabric::Member>* members) {
            return fabric::AddDevice(kNames[kRails - 1], &OpenStriped<kRails>, settings, members);
          }};
}

[[maybe_unused]] const bool g_striped_registered = [] {
  fabric::RegisterFabric(Striped<1>());
  fabric::RegisterFabric(Striped<2>());
  fabric::RegisterFabric(Striped<3>());
  return true;
}();

}  // namespace
}  // namespace rdma_transport::testing
