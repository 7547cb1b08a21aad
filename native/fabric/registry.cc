#include "fabric/registry.h"

#include <string>
#include <utility>

#include "base/log.h"
#include "fabric/combined.h"
#include "fabric/libfabric/device.h"
#include "fabric/shm/device.h"
#include "fabric/striped/device.h"
#include "fabric/verbs/device.h"

namespace rdma_transport::fabric {
namespace {

Status OpenVerbs(const Settings& settings, std::unique_ptr<Device>* device) {
  std::vector<std::unique_ptr<Device>> rails;
  RDMA_RETURN_IF_ERROR(verbs::VerbsDevice::OpenPorts(settings, &rails));
  striped::StripedSettings striping;
  striping.most_rails = static_cast<size_t>(settings.verbs.ports);
  striping.peer_timeout = settings.peer_timeout;
  return striped::StripedDevice::Create("verbs", std::move(rails), striping, device);
}

// In order of preference. Shared memory comes first: it needs no card and copies nothing.
constexpr Registration kFabrics[] = {
    {"shm", "shared memory on one host",
     [](const Settings& settings, std::vector<Member>* members) {
       return AddDevice("shm", &shm::ShmDevice::Create, settings, members);
     }},
    {"verbs", "RDMA through libibverbs",
     [](const Settings& settings, std::vector<Member>* members) {
       return AddDevice("verbs", &OpenVerbs, settings, members);
     }},
    {"libfabric", "plain Ethernet and other networks through libfabric",
     [](const Settings& settings, std::vector<Member>* members) {
       std::vector<libfabric::Rails> providers;
       RDMA_RETURN_IF_ERROR(libfabric::LibfabricDevice::OpenNics(settings, &providers));
       for (libfabric::Rails& rails : providers) {
         Member member = {rails.name, nullptr};
         striped::StripedSettings striped;
         striped.peer_timeout = settings.peer_timeout;
         RDMA_RETURN_IF_ERROR(striped::StripedDevice::Create("libfabric", std::move(rails.nics),
                                                             striped, &member.device));
         members->push_back(std::move(member));
       }
       return OkStatus();
     }},
};

std::vector<Registration>& Registry() {
  static auto* registry = new std::vector<Registration>;
  return *registry;
}

// Runs when the library is loaded, so the settings know the names before anything reads them.
[[maybe_unused]] const bool g_registered = [] {
  for (const Registration& fabric : kFabrics) RegisterFabric(fabric);
  return true;
}();

Status OpenNamed(const Settings& settings, std::vector<Member>* members) {
  for (const Registration& fabric : Fabrics()) {
    if (settings.fabric != fabric.name) continue;
    const Status opened = fabric.create(settings, members);
    if (opened.ok()) return OkStatus();
    return Status(opened.code(),
                  "RDMA_TRANSPORT_FABRIC=" + settings.fabric + ": " + opened.message());
  }
  return Status(Code::kInvalidArgument, "there is no fabric '" + settings.fabric + "'");
}

Status OpenAvailable(const Settings& settings, std::vector<Member>* members,
                     std::vector<Absent>* absent) {
  for (const Registration& fabric : Fabrics()) {
    const Status opened = fabric.create(settings, members);
    if (opened.ok()) continue;
    // A host without cards needs no log line. A host with an unusable card does.
    const bool none = opened.code() == Code::kNotFound || opened.code() == Code::kUnimplemented;
    Log(none ? LogLevel::kDebug : LogLevel::kWarning,
        std::string("no ") + fabric.name + ": " + opened.message());
    absent->push_back({fabric.name, opened});
  }
  return members->empty() ? absent->front().reason : OkStatus();
}

}  // namespace

Status AddDevice(const char* name, Status (*open)(const Settings&, std::unique_ptr<Device>*),
                 const Settings& settings, std::vector<Member>* members) {
  Member member = {name, nullptr};
  RDMA_RETURN_IF_ERROR(open(settings, &member.device));
  members->push_back(std::move(member));
  return OkStatus();
}

const std::vector<Registration>& Fabrics() { return Registry(); }

void RegisterFabric(const Registration& fabric) {
  Registry().push_back(fabric);
  AddFabricName(fabric.name);
}

Status OpenDevice(const Settings& settings, std::unique_ptr<Device>* device) {
  if (settings.fabric == kNoFabric) {
    return Status(Code::kFailedPrecondition, "RDMA_TRANSPORT_FABRIC=grpc opens no fabric");
  }
  std::vector<Member> members;
  std::vector<Absent> absent;
  RDMA_RETURN_IF_ERROR(settings.fabric == kAutoFabric ? OpenAvailable(settings, &members, &absent)
                                                      : OpenNamed(settings, &members));
  *device = std::make_unique<CombinedDevice>(std::move(members), std::move(absent));
  return OkStatus();
}

}  // namespace rdma_transport::fabric
