#include "plugin/collective_choice.h"

#include <map>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"
#include "collectives/lanes.h"
#include "fabric/host/identity.h"

namespace rdma_transport {

namespace tf = tensorflow;

namespace {

// Its number changes with the order of a reduction, and with what the members send.
constexpr std::string_view kVersion = "rdma_transport/2";
constexpr std::string_view kDirect = "direct";
constexpr std::string_view kRing = "ring";
constexpr std::string_view kNoSharedMemory = "no_shared_memory";

std::string_view ModeOf(const Settings& settings) {
  if (!settings.direct_collectives) return kRing;
  const bool shares = settings.fabric == kAutoFabric || settings.fabric == "shm";
  return shares && settings.zero_copy ? kDirect : kNoSharedMemory;
}

struct Description {
  std::string_view mode;  // empty: it has none
  std::string_view host;
};

Description DescriptionOf(const tf::CollGroupMember& member) {
  const std::vector<std::string_view> words =
      absl::StrSplit(member.device.physical_device_desc(), ' ');
  if (words.size() != 3 || words[0] != kVersion) return {};
  return {words[1], words[2]};
}

}  // namespace

void DescribeMember(const Settings& settings, tf::DeviceAttributes* device) {
  std::string text(kVersion);
  text.append(" ").append(ModeOf(settings)).append(" ").append(fabric::host::HostIdentity());
  device->set_physical_device_desc(text);
}

std::string WhyNotOurs(const tf::CollGroupParams& group) {
  if (group.device_type != tf::DEVICE_CPU) return "a group of accelerators";
  if (group.group_size < 2) return "a group of one member";
  if (static_cast<size_t>(group.group_size) != group.num_devices_per_task.size()) {
    return "a task with several members";
  }
  for (const tf::CollGroupMember& member : group.members) {
    if (DescriptionOf(member).mode.empty()) {
      return member.task + " has no rdma server of this version";
    }
  }
  return "";
}

std::string WhyNotDirect(const tf::CollGroupParams& group) {
  std::string why = WhyNotOurs(group);
  if (!why.empty()) return why;
  for (const tf::CollGroupMember& member : group.members) {
    if (DescriptionOf(member).mode == kRing) {
      return member.task + " has RDMA_TRANSPORT_COLLECTIVES=ring";
    }
  }
  return "";
}

std::vector<std::vector<int>> HostsOf(const tf::CollGroupParams& group) {
  std::vector<int> lowest;
  std::map<std::string_view, int> first;  // rank of each host
  for (const tf::CollGroupMember& member : group.members) {
    const Description description = DescriptionOf(member);
    const int rank = static_cast<int>(lowest.size());
    const bool alone = description.mode != kDirect;
    lowest.push_back(alone ? rank : first.try_emplace(description.host, rank).first->second);
  }
  return collectives::ByHost(lowest);
}

}  // namespace rdma_transport
