// fi_getinfo() and what else is found by name: shows the real provider with the settings' limits.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "objects.h"
#include "real.h"

namespace faulty_libfabric {
namespace {

constexpr uint64_t kUnsupportedCaps =
    FI_TAGGED | FI_ATOMIC | FI_COLLECTIVE | FI_MULTICAST | FI_TRIGGER | FI_PEER | FI_NAMED_RX_CTX;
constexpr uint64_t kAllOrders = ~uint64_t{0};

uint64_t Orders(const Settings& settings) {
  return settings.order == Order::kNone ? 0 : kAllOrders;
}

bool Exceeds(uint64_t wanted, const std::optional<uint64_t>& limit) {
  return limit.has_value() && wanted > *limit;
}

// Whether a provider with these settings could serve the hints.
bool Serves(const Settings& settings, const fi_info& hints) {
  if ((hints.caps & kUnsupportedCaps) != 0) return false;
  if (!settings.rma_event && (hints.caps & FI_RMA_EVENT) != 0) return false;
  if (hints.ep_attr != nullptr) {
    const fi_ep_attr& wanted = *hints.ep_attr;
    if (wanted.type != FI_EP_UNSPEC && wanted.type != FI_EP_RDM) return false;
    if (Exceeds(wanted.max_msg_size, settings.max_msg)) return false;
  }
  if (hints.tx_attr != nullptr) {
    const fi_tx_attr& wanted = *hints.tx_attr;
    if ((wanted.caps & kUnsupportedCaps) != 0) return false;
    if ((wanted.msg_order & ~Orders(settings)) != 0) return false;
    if ((wanted.comp_order & ~Orders(settings)) != 0) return false;
    if (Exceeds(wanted.size, settings.tx_size)) return false;
  }
  if (hints.rx_attr != nullptr) {
    const fi_rx_attr& wanted = *hints.rx_attr;
    if ((wanted.caps & kUnsupportedCaps) != 0) return false;
    if (!settings.rma_event && (wanted.caps & FI_RMA_EVENT) != 0) return false;
    if ((wanted.msg_order & ~Orders(settings)) != 0) return false;
    if ((wanted.comp_order & ~Orders(settings)) != 0) return false;
  }
  if (hints.domain_attr != nullptr) {
    const fi_domain_attr& wanted = *hints.domain_attr;
    if (wanted.cq_data_size > settings.cq_data) return false;
    if (wanted.mr_key_size > settings.mr_key_size) return false;
    if ((settings.mr_mode & ~wanted.mr_mode) != 0) return false;
  }
  return true;
}

void Replace(char*& text, const std::string& by) {
  std::free(text);
  text = strdup(by.c_str());
}

void Rename(fi_fabric_attr& attributes, const std::string& name) {
  Replace(attributes.prov_name, name);
}

// A provider of a card, as far as nics= and direct= go.
bool HasCards(const std::string& provider) { return provider != "tcp" && provider != "net"; }

void Limit(const Settings& settings, fi_info& info) {
  info.caps &= ~kUnsupportedCaps;
  info.tx_attr->caps &= ~kUnsupportedCaps;
  info.rx_attr->caps &= ~kUnsupportedCaps;
  if (!settings.rma_event) {
    info.caps &= ~FI_RMA_EVENT;
    info.rx_attr->caps &= ~FI_RMA_EVENT;
  }
  info.tx_attr->msg_order &= Orders(settings);
  info.rx_attr->msg_order &= Orders(settings);
  info.tx_attr->comp_order &= Orders(settings);
  info.rx_attr->comp_order &= Orders(settings);
  if (settings.order != Order::kProvider) {
    info.ep_attr->max_order_raw_size = 0;
    info.ep_attr->max_order_war_size = 0;
    info.ep_attr->max_order_waw_size = 0;
  }
  if (settings.max_msg.has_value()) info.ep_attr->max_msg_size = *settings.max_msg;
  if (settings.tx_size.has_value()) info.tx_attr->size = *settings.tx_size;
  info.domain_attr->cq_data_size = settings.cq_data;
  info.domain_attr->mr_key_size = settings.mr_key_size;
  info.domain_attr->mr_mode =
      (info.caps & FI_RMA) != 0 ? settings.mr_mode : settings.mr_mode & FI_MR_LOCAL;
}

// The hints without what Serves() has compared and the real provider would refuse.
InfoPtr RealHints(const RealLibrary& real, const fi_info* hints) {
  InfoPtr copy(real.dupinfo(hints));
  if (copy->fabric_attr == nullptr) {
    // dupinfo() of incomplete hints; the real library frees what it knows.
    copy->fabric_attr = static_cast<fi_fabric_attr*>(std::calloc(1, sizeof(fi_fabric_attr)));
  }
  if (copy->ep_attr == nullptr) {
    copy->ep_attr = static_cast<fi_ep_attr*>(std::calloc(1, sizeof(fi_ep_attr)));
  }
  copy->ep_attr->type = FI_EP_RDM;
  copy->fabric_attr->fabric = nullptr;
  Rename(*copy->fabric_attr, real.provider);
  if (copy->domain_attr != nullptr) copy->domain_attr->domain = nullptr;
  if (copy->tx_attr != nullptr) copy->tx_attr->inject_size = 0;
  return copy;
}

fi_info* Copied(const RealLibrary& real, const Settings& settings, const fi_info& found,
                const std::string& name) {
  fi_info* copy = real.dupinfo(&found);
  if (copy == nullptr) return nullptr;
  Limit(settings, *copy);
  Rename(*copy->fabric_attr, name);
  return copy;
}

// One copy for each card, if there are cards, or for each address of the real provider.
int Append(const RealLibrary& real, const Settings& settings, const fi_info* found,
           const std::string& name, fi_info**& tail) {
  const bool cards = HasCards(name) && !settings.nics.empty();
  for (; found != nullptr; found = found->next) {
    if (real.provider != found->fabric_attr->prov_name) continue;
    const std::string interface = found->domain_attr->name;
    if (cards && (interface != "lo" || found->addr_format != FI_SOCKADDR_IN)) continue;
    for (size_t i = 0; i < (cards ? settings.nics.size() : 1); ++i) {
      fi_info* copy = Copied(real, settings, *found, name);
      if (copy == nullptr) return -FI_ENOMEM;
      *tail = copy;
      tail = &copy->next;
      if (!cards) continue;
      Replace(copy->domain_attr->name, name + std::to_string(i));
      copy->nic = MakeNic(i, settings.nics[i], interface);
    }
  }
  return 0;
}

}  // namespace

void InfoDeleter::operator()(fi_info* info) const { Real()->freeinfo(info); }

InfoPtr ToReal(const fi_info* info) {
  InfoPtr copy(Real()->dupinfo(info));
  Rename(*copy->fabric_attr, Real()->provider);
  copy->fabric_attr->api_version = std::min(copy->fabric_attr->api_version, Real()->version());
  fi_domain_attr& domain = *copy->domain_attr;
  if (copy->nic != nullptr) Replace(domain.name, InterfaceBelow(*copy->nic));
  if (OnlyRemote(*copy)) copy->caps ^= FI_LOCAL_COMM | FI_REMOTE_COMM;
  domain.mr_mode &= FI_MR_VIRT_ADDR;
  domain.threading = FI_THREAD_SAFE;
  domain.control_progress = domain.data_progress = FI_PROGRESS_MANUAL;
  copy->tx_attr->inject_size = 0;
  copy->tx_attr->size = std::max<size_t>(copy->tx_attr->size, 1024);
  return copy;
}

const RealLibrary* Real() {
  static const RealLibrary* real = []() -> const RealLibrary* {
    void* library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      std::fprintf(stderr, "faulty_libfabric: %s\n", dlerror());
      return nullptr;
    }
    auto* found = new RealLibrary;
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
    find(found->getinfo, "fi_getinfo");
    find(found->freeinfo, "fi_freeinfo");
    find(found->dupinfo, "fi_dupinfo");
    find(found->fabric, "fi_fabric");
    find(found->strerror, "fi_strerror");
    find(found->version, "fi_version");
    found->provider = found->version() >= FI_VERSION(1, 18) ? "tcp" : "net";
    return found;
  }();
  return real;
}

int GetInfo(uint32_t version, const char* node, const char* service, uint64_t flags,
            const fi_info* hints, fi_info** info) {
  *info = nullptr;
  const RealLibrary* real = Real();
  if (real == nullptr) return -FI_ENOSYS;
  if (!EnvironmentIsValid()) return -FI_EINVAL;
  const auto settings = Current();
  if (settings->version.has_value() && version > *settings->version) return -FI_ENOSYS;
  if (settings->no_provider || (hints != nullptr && !Serves(*settings, *hints))) {
    Count(&FaultyLibfabricCounters::refused_hints);
    return -FI_ENODATA;
  }
  const InfoPtr real_hints = RealHints(*real, hints);
  fi_info* found = nullptr;
  const int error = real->getinfo(std::min(version, real->version()), node, service, flags,
                                  real_hints.get(), &found);
  if (error != 0) return error;
  const InfoPtr owned(found);
  std::vector<std::string> names = settings->providers;
  if (names.empty()) names.push_back(real->provider);
  fi_info** tail = info;
  for (const std::string& name : names) {
    for (const bool direct : {true, false}) {
      if (direct && !(settings->direct && HasCards(name))) continue;
      fi_info** const first = tail;
      if (const int failed = Append(*real, *settings, found, name, tail); failed != 0) {
        real->freeinfo(*info);
        *info = nullptr;
        return failed;
      }
      if (!HasCards(name)) continue;
      for (fi_info* made = *first; made != nullptr; made = made->next) {
        Replace(made->fabric_attr->name, direct ? kDirect : name);
      }
    }
  }
  for (fi_info* made = *info; made != nullptr; made = made->next) {
    made->fabric_attr->api_version = version;
  }
  return *info == nullptr ? -FI_ENODATA : 0;
}

}  // namespace faulty_libfabric

using namespace faulty_libfabric;

extern "C" {

int fi_getinfo(uint32_t version, const char* node, const char* service, uint64_t flags,
               const fi_info* hints, fi_info** info) {
  return GetInfo(version, node, service, flags, hints, info);
}

void fi_freeinfo(fi_info* info) {
  if (Real() != nullptr) Real()->freeinfo(info);
}

fi_info* fi_dupinfo(const fi_info* info) {
  return Real() == nullptr ? nullptr : Real()->dupinfo(info);
}

uint32_t fi_version(void) {
  const auto settings = Current();
  if (settings->version.has_value()) return *settings->version;
  return Real() == nullptr ? 0 : Real()->version();
}

const char* fi_strerror(int error) {
  return Real() == nullptr ? "no libfabric" : Real()->strerror(error);
}
}
