#include "fabric/libfabric/providers.h"

#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <tuple>
#include <utility>

#include "fabric/host/device_list.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Providers of cards that are used without being named. Those of InfiniBand and RoCE cards are not
// among them, because the verbs fabric serves these.
constexpr const char* kCards[] = {"efa", "cxi", "opx", "psm2", "gni"};
constexpr char kTcp[] = "tcp";
// Interfaces of containers and virtual machines on this host, which lead to no other host.
constexpr const char* kInternal[] = {"docker", "virbr", "veth", "br-", "cni"};

std::string NameOf(const fi_info& info) {
  const std::string name = info.fabric_attr->prov_name;
  return name == "net" ? kTcp : name;  // its name in libfabric 1.16 and 1.17
}

bool IsCard(const std::string& name) {
  return std::any_of(std::begin(kCards), std::end(kCards),
                     [&](const char* card) { return name == card; });
}

std::string InterfaceOf(const fi_info& info) {
  return info.domain_attr->name == nullptr ? "" : info.domain_attr->name;
}

// The interface of the default route, or "".
std::string DefaultInterface() {
  std::ifstream routes("/proc/net/route");
  std::string line;
  std::getline(routes, line);  // the titles
  while (std::getline(routes, line)) {
    const size_t tab = line.find('\t');
    if (tab != std::string::npos && line.compare(tab + 1, 8, "00000000") == 0) {
      return line.substr(0, tab);
    }
  }
  return "";
}

bool IsLoopback(const std::string& interface) { return interface == "lo"; }

// Addresses that mean nothing on another host without naming an interface there.
bool IsLinkLocal(const fi_info& info) {
  if (info.addr_format != FI_SOCKADDR_IN6 || info.src_addrlen < sizeof(sockaddr_in6)) return false;
  sockaddr_in6 address;
  std::memcpy(&address, info.src_addr, sizeof(address));
  return IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

bool IsInternal(const std::string& interface) {
  return std::any_of(std::begin(kInternal), std::end(kInternal), [&](const char* prefix) {
    return interface.compare(0, std::strlen(prefix), prefix) == 0;
  });
}

InfoPtr Query(const Library& library, uint64_t capabilities) {
  const InfoPtr hints(library.dupinfo(nullptr), {&library});
  if (hints == nullptr) return InfoPtr(nullptr, {&library});
  hints->caps = FI_MSG | FI_RMA | capabilities;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  // The polling thread drives the provider, so that it needs no thread of its own.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->av_type = FI_AV_TABLE;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  fi_info* found = nullptr;
  const int error = library.getinfo(kApiVersion, nullptr, nullptr, 0, hints.get(), &found);
  return InfoPtr(error == 0 ? found : nullptr, {&library});
}

// Ranks what the library offers; smaller is better.
class Choice {
 public:
  Choice(host::DeviceList providers, host::DeviceList interfaces)
      : providers_(std::move(providers)), interfaces_(std::move(interfaces)) {}

  // Returns whether the settings allow it, and sets its rank.
  bool Allows(const fi_info& info, bool says_arrivals, std::vector<int>* rank) const {
    const std::string name = NameOf(info);
    const std::string interface = InterfaceOf(info);
    const bool tcp = name.compare(0, 3, kTcp) == 0;
    const int provider = providers_.entries.empty() ? (IsCard(name) ? 0
                                                       : tcp        ? 1
                                                                    : -1)
                                                    : providers_.Place(name, 0);
    const int place = interfaces_.Place(interface, 0);
    if (provider < 0 || place < 0 || IsLinkLocal(info)) return false;
    *rank = {provider,
             // Of TCP's two, the one that says when writes have arrived.
             says_arrivals ? 0 : 1, place, IsLoopback(interface) ? 1 : 0,
             IsInternal(interface) ? 1 : 0, interface == default_interface_ ? 0 : 1,
             info.addr_format == FI_SOCKADDR_IN ? 0 : 1};
    return true;
  }

 private:
  const host::DeviceList providers_;
  const host::DeviceList interfaces_;
  const std::string default_interface_ = DefaultInterface();
};

Status NothingFound(const LibfabricSettings& settings, const std::set<std::string>& seen) {
  std::string what = "no provider of libfabric can reach other hosts";
  if (!settings.provider.empty() || !settings.interface.empty()) {
    what = "no provider of libfabric fits RDMA_TRANSPORT_LIBFABRIC_PROVIDER='" + settings.provider +
           "' and RDMA_TRANSPORT_LIBFABRIC_INTERFACE='" + settings.interface + "'";
  }
  std::string names;
  for (const std::string& name : seen) names += (names.empty() ? "" : ", ") + name;
  return Status(Code::kNotFound, what + "; there are: " + (names.empty() ? "none" : names));
}

}  // namespace

Status FindProviders(const Library& library, const LibfabricSettings& settings,
                     std::vector<Provider>* providers) {
  host::DeviceList by_provider;
  host::DeviceList by_interface;
  RDMA_RETURN_IF_ERROR(host::ParseDeviceList("RDMA_TRANSPORT_LIBFABRIC_PROVIDER", settings.provider,
                                             "names such as efa,tcp", &by_provider));
  RDMA_RETURN_IF_ERROR(host::ParseDeviceList("RDMA_TRANSPORT_LIBFABRIC_INTERFACE",
                                             settings.interface, "names such as eth0,eth1",
                                             &by_interface));
  const Choice choice(std::move(by_provider), std::move(by_interface));
  struct Candidate {
    std::vector<int> rank;
    const fi_info* info;
  };
  std::vector<Candidate> candidates;
  std::set<std::string> seen;
  const InfoPtr lists[] = {Query(library, FI_RMA_EVENT), Query(library, 0)};
  for (const InfoPtr& list : lists) {
    const bool says_arrivals = &list == &lists[0];
    for (const fi_info* info = list.get(); info != nullptr; info = info->next) {
      seen.insert(NameOf(*info) + " on " + InterfaceOf(*info));
      std::vector<int> rank;
      if (choice.Allows(*info, says_arrivals, &rank)) candidates.push_back({rank, info});
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (const Candidate& candidate : candidates) {
    Provider provider;
    provider.name = NameOf(*candidate.info);
    provider.card = provider.name.compare(0, 3, kTcp) != 0;
    const bool another =
        std::any_of(providers->begin(), providers->end(),
                    [&](const Provider& chosen) { return chosen.card == provider.card; });
    if (another) continue;
    provider.info = InfoPtr(library.dupinfo(candidate.info), {&library});
    if (provider.info != nullptr) providers->push_back(std::move(provider));
  }
  return providers->empty() ? NothingFound(settings, seen) : OkStatus();
}

}  // namespace rdma_transport::fabric::libfabric
