#include "fabric/libfabric/providers.h"

#include <netinet/in.h>
#include <unistd.h>  // environ

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <set>
#include <tuple>
#include <utility>

#include "fabric/host/device_list.h"
#include "fabric/libfabric/sockets.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Providers of cards that are used without being named. Those of InfiniBand and RoCE cards are not
// among them, because the verbs fabric serves these.
constexpr char kEfa[] = "efa";
constexpr const char* kCards[] = {kEfa, "cxi", "opx", "psm2", "gni"};
constexpr char kTcp[] = "tcp";
constexpr char kOnlyThisHost[] = "the loopback interface reaches this host only";
// Interfaces of containers and virtual machines on this host, which lead to no other host.
constexpr const char* kInternal[] = {"docker", "virbr", "veth", "br-", "cni"};

std::string NameOf(const fi_info& info) {
  const std::string name = info.fabric_attr->prov_name;
  constexpr char kNet[] = "net";  // its name in libfabric 1.16 and 1.17
  const std::string base = name.substr(0, name.find(';'));
  return base == kNet ? kTcp + name.substr(base.size()) : name;
}

bool IsCard(const std::string& name) {
  return std::any_of(std::begin(kCards), std::end(kCards),
                     [&](const char* card) { return name == card; });
}

// Whether it stands on another provider: "tcp;ofi_rxm".
bool IsLayered(const fi_info& info) {
  return std::strchr(info.fabric_attr->prov_name, ';') != nullptr;
}

// The same cards of EFA as the next offers, without EFA's protocol: there, messages have 8 KiB.
bool IsDirect(const fi_info& info) {
  return info.fabric_attr->name != nullptr &&
         std::strcmp(info.fabric_attr->name, "efa-direct") == 0;
}

bool IsTcp(const std::string& name) { return name.compare(0, std::strlen(kTcp), kTcp) == 0; }

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

bool IsInternal(const std::string& interface) {
  return std::any_of(std::begin(kInternal), std::end(kInternal), [&](const char* prefix) {
    return interface.compare(0, std::strlen(prefix), prefix) == 0;
  });
}

// Addresses that mean nothing on another host without naming an interface there.
bool IsLinkLocal(const fi_info& info) {
  if (info.addr_format != FI_SOCKADDR_IN6 || info.src_addrlen < sizeof(sockaddr_in6)) return false;
  sockaddr_in6 address;
  std::memcpy(&address, info.src_addr, sizeof(address));
  return IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr);
}

InfoPtr Query(const Library& library) {
  const InfoPtr hints = library.Copy(nullptr);
  if (hints == nullptr) return InfoPtr();
  hints->caps = FI_MSG | FI_RMA;
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
  return library.Offers(*hints);
}

// Without the port, which the kernel chooses later.
std::string AddressOf(const fi_info& info) {
  std::string host;
  uint16_t port = 0;
  ReadSocketAddress(info.addr_format, {static_cast<const char*>(info.src_addr), info.src_addrlen},
                    &host, &port);
  return host;
}

// What decides between two offers, the most important first. Smaller is better.
enum Criterion { kByProvider, kByLayer, kByInterface, kByDistance, kByReach, kByFamily, kCriteria };
using Rank = std::array<int, kCriteria>;

// What the better one has, and that they are equal.
constexpr const char* kWhyNot[] = {
    "a provider that is preferred to it is used",
    "the same provider is used without a layer above it",
    "it comes later in RDMA_TRANSPORT_LIBFABRIC_INTERFACE",
    "a card nearer to the processors of this task is used",
    "another interface is more likely to reach other hosts",
    "IPv4 is preferred",
    "another interface is used; RDMA_TRANSPORT_LIBFABRIC_INTERFACE can name this one"};

// Ranks what the library offers.
class Choice {
 public:
  // `alone`: no other fabric may be used.
  Choice(host::DeviceList providers, host::DeviceList interfaces, bool alone)
      : providers_(std::move(providers)), interfaces_(std::move(interfaces)), alone_(alone) {}

  // Returns nothing if this may be used, and sets its rank; otherwise the reason why not.
  std::string Refuse(const fi_info& info, const Nic& nic, Rank* rank) const {
    const std::string interface = InterfaceOf(info);
    const int provider = RankOf(NameOf(info));
    const int place = interfaces_.Place(interface, 0);
    if (provider < 0) {
      if (Named()) return "RDMA_TRANSPORT_LIBFABRIC_PROVIDER does not name it";
      if (Excludes(NameOf(info))) return "RDMA_TRANSPORT_LIBFABRIC_PROVIDER excludes it";
      return "it is used only if RDMA_TRANSPORT_LIBFABRIC_PROVIDER names it";
    }
    if (place < 0) {
      return "RDMA_TRANSPORT_LIBFABRIC_INTERFACE " +
             std::string(interfaces_.all_but ? "excludes it" : "does not name it");
    }
    if (nic.down) return "its link is down";
    if (IsLinkLocal(info)) return "its address is link-local";
    const bool wanted = alone_ || InterfacesNamed();
    if (IsTcp(NameOf(info)) && IsLoopback(interface) && !wanted) return kOnlyThisHost;
    (*rank)[kByProvider] = provider;
    (*rank)[kByLayer] = IsLayered(info) ? 1 : 0;
    (*rank)[kByInterface] = place;
    (*rank)[kByDistance] = nic.far ? 1 : 0;
    (*rank)[kByReach] = IsLoopback(interface)             ? 3
                        : IsInternal(interface)           ? 2
                        : interface != default_interface_ ? 1
                                                          : 0;
    (*rank)[kByFamily] = info.addr_format == FI_SOCKADDR_IN ? 0 : 1;
    return "";
  }

  // Why an offer with this rank is used.
  std::string Why(const fi_info& info, const Rank& rank) const {
    if (InterfacesNamed()) return "RDMA_TRANSPORT_LIBFABRIC_INTERFACE names it";
    if (Named()) return "RDMA_TRANSPORT_LIBFABRIC_PROVIDER names it";
    if (IsCard(NameOf(info))) return "it is a card's";
    return rank[kByReach] == 0 ? "it is the interface of the default route"
                               : "no other interface is better";
  }

 private:
  // Whether the setting lists what to use, and not what to leave out.
  bool Named() const { return !providers_.entries.empty() && !providers_.all_but; }
  bool InterfacesNamed() const { return !interfaces_.entries.empty() && !interfaces_.all_but; }
  bool Excludes(const std::string& name) const { return providers_.Place(name, 0) < 0; }

  // -1: not used. What is used without being named is what "^" leaves out some of.
  int RankOf(const std::string& name) const {
    if (Named()) return providers_.Place(name, 0);
    if (Excludes(name)) return -1;
    return IsCard(name) ? 0 : IsTcp(name) ? 1 : -1;
  }

  const host::DeviceList providers_;
  const host::DeviceList interfaces_;
  const bool alone_;
  const std::string default_interface_ = DefaultInterface();
};

// `excluded`: the settings only leave something out, such as TCP where there may be no card.
Status NothingFound(const LibfabricSettings& settings, bool excluded,
                    const std::vector<Offer>& offers) {
  if (offers.empty()) {
    return Status(Code::kNotFound, "libfabric offers no provider with reliable datagrams and RMA");
  }
  const auto only_here = [](const Offer& offer) { return offer.reason == kOnlyThisHost; };
  if (std::any_of(offers.begin(), offers.end(), only_here)) {
    return Status(Code::kNotFound,
                  "libfabric has no interface that other hosts reach, only the loopback interface "
                  "(name it by RDMA_TRANSPORT_LIBFABRIC_INTERFACE to use it)");
  }
  std::string given;
  const auto add = [&given](const char* name, const std::string& value) {
    if (value.empty()) return;
    given += (given.empty() ? "" : " and ") + std::string(name) + "=" + value;
  };
  add("RDMA_TRANSPORT_LIBFABRIC_PROVIDER", settings.provider);
  add("RDMA_TRANSPORT_LIBFABRIC_INTERFACE", settings.interface);
  // What nobody would name is left out, unless that is what the user may be looking for.
  const auto common = [](const Offer& offer) { return offer.card || offer.provider == kTcp; };
  const bool all = !settings.provider.empty() || std::none_of(offers.begin(), offers.end(), common);
  std::set<std::string> seen;
  for (const Offer& offer : offers) {
    if (all || common(offer)) seen.insert(offer.provider + " on " + offer.interface);
  }
  std::string names;
  for (const std::string& name : seen) names += (names.empty() ? "" : ", ") + name;
  if (given.empty()) {
    return Status(
        Code::kNotFound,
        "no provider of libfabric that is used by default reaches other hosts; there are " + names +
            "; RDMA_TRANSPORT_LIBFABRIC_PROVIDER can name one");
  }
  return Status(excluded ? Code::kNotFound : Code::kFailedPrecondition,
                given + " allows no provider of libfabric; there are " + names);
}

struct Candidate {
  Rank rank;
  Nic nic;
  const fi_info* info;
  size_t offer;  // index
};

// Adds what `list` has, but what comes twice only once.
void Collect(const fi_info* list, const Choice& choice, const std::string& pci_devices,
             std::vector<Offer>* offers, std::vector<Candidate>* candidates) {
  for (const fi_info* info = list; info != nullptr; info = info->next) {
    if (IsDirect(*info)) continue;
    Offer offer;
    offer.provider = NameOf(*info);
    offer.full_name = info->fabric_attr->prov_name;
    offer.interface = InterfaceOf(*info);
    offer.address = AddressOf(*info);
    offer.card = IsCard(offer.provider);
    const bool known = std::any_of(offers->begin(), offers->end(), [&offer](const Offer& other) {
      return std::tie(other.full_name, other.interface, other.address) ==
             std::tie(offer.full_name, offer.interface, offer.address);
    });
    if (known) continue;
    Rank rank = {};
    const Nic nic = NicOf(*info, pci_devices);
    offer.reason = choice.Refuse(*info, nic, &rank);
    if (offer.reason.empty()) candidates->push_back({rank, nic, info, offers->size()});
    offers->push_back(std::move(offer));
  }
}

// What a task uses of the offers over TCP, or of the others.
struct Used {
  std::vector<const Candidate*> candidates;

  // Why this one does not join those before it, or "".
  std::string Refuse(const Candidate& candidate) const {
    if (candidates.empty()) return "";
    const Candidate& first = *candidates.front();
    if (NameOf(*candidate.info) != NameOf(*first.info)) return kWhyNot[kByProvider];
    const bool several = candidate.info->nic != nullptr;
    Rank rank = candidate.rank;
    if (several) rank[kByInterface] = first.rank[kByInterface];
    const auto differs = std::mismatch(first.rank.begin(), first.rank.end(), rank.begin()).first;
    const bool known = std::any_of(candidates.begin(), candidates.end(), [&](const auto* other) {
      return InterfaceOf(*other->info) == InterfaceOf(*candidate.info);
    });
    if (!several || known || differs != first.rank.end()) {
      return kWhyNot[differs - first.rank.begin()];
    }
    return candidate.nic.speed == first.nic.speed ? "" : "cards of another speed are used";
  }

  // Puts those first that this task prefers, as far as the list has no preference: each task of a
  // host begins with another one, and, of very many, uses others.
  void Spread() {
    const auto other = std::find_if(candidates.begin(), candidates.end(), [this](const auto* one) {
      return one->rank != candidates.front()->rank;
    });
    const auto same = static_cast<uint64_t>(other - candidates.begin());
    const uint64_t used = std::min<uint64_t>(same, kMaxNics) * LocalTask(environ);
    std::rotate(candidates.begin(),
                candidates.begin() + static_cast<int64_t>((used + used / same) % same), other);
  }
};

InfoPtr Copied(const Library& library, const Candidate& candidate) {
  InfoPtr info = library.Copy(candidate.info);
  if (info != nullptr && NameOf(*info) == kEfa) {
    // Otherwise it uses shared memory on a host, and then has no descriptor to sleep on.
    info->caps = (info->caps & ~FI_LOCAL_COMM) | FI_REMOTE_COMM;
  }
  return info;
}

}  // namespace

Status FindProviders(const Library& library, const Settings& all_settings,
                     std::vector<Provider>* providers, std::vector<Offer>* offers,
                     const std::string& pci_devices) {
  const LibfabricSettings& settings = all_settings.libfabric;
  host::DeviceList by_provider;
  host::DeviceList by_interface;
  RDMA_RETURN_IF_ERROR(host::ParseDeviceList("RDMA_TRANSPORT_LIBFABRIC_PROVIDER", settings.provider,
                                             "names such as efa,tcp", &by_provider));
  RDMA_RETURN_IF_ERROR(host::ParseDeviceList("RDMA_TRANSPORT_LIBFABRIC_INTERFACE",
                                             settings.interface, "names such as eth0,eth1",
                                             &by_interface));
  const bool excluded =
      by_provider.all_but && (by_interface.entries.empty() || by_interface.all_but);
  const bool alone = all_settings.fabric == "libfabric";
  const Choice choice(std::move(by_provider), std::move(by_interface), alone);
  std::vector<Offer> found;
  std::vector<Candidate> candidates;
  const InfoPtr all = Query(library);
  Collect(all.get(), choice, pci_devices, &found, &candidates);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  Used over_tcp;
  Used others;
  std::vector<Used*> ranked;
  for (const Candidate& candidate : candidates) {
    Offer& offer = found[candidate.offer];
    Used& used = IsTcp(offer.provider) ? over_tcp : others;
    offer.reason = used.Refuse(candidate);
    if (!offer.reason.empty()) continue;
    if (used.candidates.empty()) ranked.push_back(&used);
    used.candidates.push_back(&candidate);
  }
  for (Used* used : ranked) {
    used->Spread();
    Provider provider;
    provider.name = found[used->candidates.front()->offer].provider;
    for (const Candidate* candidate : used->candidates) {
      Offer& offer = found[candidate->offer];
      InfoPtr info = Copied(library, *candidate);
      offer.chosen = info != nullptr && provider.nics.size() < kMaxNics;
      offer.reason = offer.chosen ? choice.Why(*candidate->info, candidate->rank)
                                  : "a task uses at most " + std::to_string(kMaxNics) + " cards";
      if (offer.chosen) provider.nics.push_back(std::move(info));
    }
    if (!provider.nics.empty()) providers->push_back(std::move(provider));
  }
  const Status result = providers->empty() ? NothingFound(settings, excluded, found) : OkStatus();
  if (offers != nullptr) *offers = std::move(found);
  return result;
}

}  // namespace rdma_transport::fabric::libfabric
