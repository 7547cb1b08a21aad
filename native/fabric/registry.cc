#include "fabric/registry.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "fabric/combined.h"
#include "fabric/shm/device.h"
#include "fabric/verbs/device.h"

namespace rdma_transport::fabric {
namespace {

struct Kind {
  FabricChoice choice;
  const char* name;
  Status (*open)(const Settings& settings, std::unique_ptr<Device>* device);
};

// In order of preference. Shared memory comes first: it needs no card and copies nothing.
constexpr Kind kKinds[] = {
    {FabricChoice::kShm, "shm", &shm::ShmDevice::Create},
    {FabricChoice::kVerbs, "verbs", &verbs::VerbsDevice::Create},
};

}  // namespace

Status OpenDevice(const Settings& settings, std::unique_ptr<Device>* device) {
  if (settings.fabric == FabricChoice::kGrpc) {
    return Status(Code::kFailedPrecondition, "RDMA_TRANSPORT_FABRIC=grpc opens no fabric");
  }
  const bool any = settings.fabric == FabricChoice::kAuto;
  std::vector<Member> members;
  std::vector<Absent> absent;
  for (const Kind& kind : kKinds) {
    if (!any && settings.fabric != kind.choice) continue;
    Member member;
    member.name = kind.name;
    const Status opened = kind.open(settings, &member.device);
    if (opened.ok()) {
      members.push_back(std::move(member));
      continue;
    }
    if (!any) {
      return Status(opened.code(),
                    std::string("RDMA_TRANSPORT_FABRIC=") + kind.name + ": " + opened.message());
    }
    // A host without cards needs no log line. A host with an unusable card does.
    const bool none = opened.code() == Code::kNotFound || opened.code() == Code::kUnimplemented;
    Log(none ? LogLevel::kDebug : LogLevel::kWarning,
        std::string("no ") + kind.name + ": " + opened.message());
    absent.push_back({kind.name, opened});
  }
  if (members.empty()) return absent.front().reason;
  *device = std::make_unique<CombinedDevice>(std::move(members), std::move(absent));
  return OkStatus();
}

}  // namespace rdma_transport::fabric
