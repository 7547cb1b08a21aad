#include "fabric/verbs/survey.h"

#include <unistd.h>  // environ

#include <algorithm>
#include <iterator>
#include <memory>
#include <vector>

#include "base/json.h"
#include "base/settings.h"
#include "fabric/host/dynamic_library.h"
#include "fabric/verbs/memlock.h"
#include "fabric/verbs/ports.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {
namespace {

const char* StateName(ibv_port_state state) {
  constexpr const char* kStates[] = {"nop", "down", "init", "armed", "active", "active_defer"};
  const auto number = static_cast<size_t>(state);
  return number < std::size(kStates) ? kStates[number] : "unknown";
}

std::string Fork(const Library& library) {
  if (library.is_fork_initialized == nullptr) return "unknown";
  constexpr const char* kNames[] = {"disabled", "enabled", "unneeded"};
  const auto status = static_cast<size_t>(library.is_fork_initialized());
  return status < std::size(kNames) ? kNames[status] : "unknown";
}

std::string Gids(const PortCandidate& port) {
  Json gids('[');
  for (const Gid& gid : port.gids) {
    gids.Add(Json('{')
                 .Count("index", gid.index)
                 .Text("type", GidTypeName(gid.type))
                 .Text("address", gid.Text())
                 .End());
  }
  return gids.End();
}

// `chosen` is null if this port is not used.
std::string Describe(const PortCandidate& port, const PortChoice* chosen,
                     const std::vector<std::string>& left_out) {
  const std::string prefix = port.Name() + ": ";
  std::string reason;
  for (const std::string& sentence : left_out) {
    if (sentence.compare(0, prefix.size(), prefix) == 0) reason = sentence.substr(prefix.size());
  }
  Json json('{');
  json.Text("name", port.Name())
      .Text("device", port.device)
      .Count("port", port.number)
      .Flag("chosen", chosen != nullptr)
      .Text("reason", reason)
      .Flag("active", port.problem.ok() && port.attributes.state == IBV_PORT_ACTIVE);
  // The state is 0 if the port was never read.
  const bool read = port.problem.ok() && port.attributes.state != IBV_PORT_NOP;
  if (read) {
    json.Text("link_layer", port.ethernet() ? "RoCE" : "InfiniBand")
        .Text("state", StateName(port.attributes.state))
        .Count("mtu", MtuBytes(port.attributes.active_mtu))
        .Count("max_mtu", MtuBytes(port.attributes.max_mtu))
        .Count("lid", port.attributes.lid)
        .Field("gids", Gids(port));
  }
  if (chosen != nullptr) {
    json.Count("used_gid", chosen->gid.index).Count("used_mtu", MtuBytes(chosen->mtu));
  }
  return json.End();
}

// `ports`: how many are used.
std::string Memlock(size_t ports) {
  const uint64_t limit = MemlockLimit();
  return Json('{')
      .Field("limit", limit == kNoMemlockLimit ? "null" : std::to_string(limit))
      .Count("begin", std::max(ports, size_t{1}) * MemoryToBeginWith(kLargeRing))
      .Count("ring", kLargeRing)
      .Text("help", MemlockHelp())
      .End();
}

}  // namespace

std::string SurveyJson() {
  Settings settings;
  std::vector<std::string> warnings;
  std::shared_ptr<const Library> library;
  std::vector<PortCandidate> ports;
  std::vector<std::string> left_out;
  std::vector<PortChoice> choices;
  Status status = LoadSettings(environ, &settings, &warnings);
  if (status.ok()) status = LoadLibrary(settings.verbs.library, &library);
  Json known('{');
  known.Text("name", settings.verbs.library).Text("error", status.message());
  if (library != nullptr) {
    known
        .Text("file",
              host::FileOf(reinterpret_cast<void*>(library->get_device_list), library->path))
        .Text("fork", Fork(*library));
    status = SurveyPorts(*library, settings.verbs, &ports, &choices, &left_out);
  }
  Json described('[');
  for (size_t i = 0; i < ports.size(); ++i) {
    const auto chosen = std::find_if(choices.begin(), choices.end(),
                                     [i](const PortChoice& one) { return one.candidate == i; });
    described.Add(Describe(ports[i], chosen == choices.end() ? nullptr : &*chosen, left_out));
  }
  Json reasons('[');
  for (const std::string& reason : left_out) reasons.Add(Quote(reason));
  return Json('{')
      .Field("library", known.End())
      .Field("ports", described.End())
      .Field("left_out", reasons.End())
      .Text("error", status.message())
      .Field("memlock", Memlock(choices.size()))
      .End();
}

}  // namespace rdma_transport::fabric::verbs
