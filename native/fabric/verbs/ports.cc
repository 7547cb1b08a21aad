#include "fabric/verbs/ports.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include "base/log.h"
#include "fabric/host/cpu_list.h"
#include "fabric/host/device_list.h"
#include "fabric/verbs/errors.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr char kSysfs[] = "/sys/class/infiniband";

// The devices that the library lists, and their open contexts. Destruction closes them.
class Devices {
 public:
  explicit Devices(const Library& library) : library_(library) {}
  ~Devices() {
    for (ibv_context* context : contexts_) {
      if (context != nullptr) library_.close_device(context);
    }
    if (list_ != nullptr) library_.free_device_list(list_);
  }
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  // Returns 0 or an errno.
  int Read() {
    int count = 0;
    errno = 0;
    list_ = library_.get_device_list(&count);
    if (list_ == nullptr) return errno == 0 ? ENOSYS : errno;
    contexts_.resize(static_cast<size_t>(count));
    return 0;
  }

  size_t count() const { return contexts_.size(); }
  ibv_device* device(size_t i) const { return list_[i]; }
  // Returns null and sets errno if the device cannot be opened.
  ibv_context* Open(size_t i) {
    errno = 0;
    contexts_[i] = library_.open_device(list_[i]);
    return contexts_[i];
  }
  // Transfers an open context to the caller: each call another one. Returns null and sets errno if
  // the device cannot be opened again.
  ibv_context* Take(size_t i) {
    errno = 0;
    ibv_context* open = std::exchange(contexts_[i], nullptr);
    return open != nullptr ? open : library_.open_device(list_[i]);
  }

 private:
  const Library& library_;
  ibv_device** list_ = nullptr;
  std::vector<ibv_context*> contexts_;  // one per device; null: not open
};

// Old verbs return -1 and set errno; newer ones return the error.
int ErrorOf(int result) { return result > 0 ? result : errno != 0 ? errno : EIO; }

std::string Names(const std::filesystem::path& directory) {
  std::string names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    names += (names.empty() ? "" : ", ") + entry->path().filename().string();
  }
  return names;
}

Status NoDevices() {
  const std::string names = Names(kSysfs);
  if (!names.empty()) {
    return Status(Code::kNotFound,
                  "the kernel has RDMA devices (" + names +
                      "), but libibverbs shows none: install the drivers of the same rdma-core "
                      "(Debian: apt-get install ibverbs-providers; RHEL: dnf install libibverbs), "
                      "and in a container give it the devices (docker run "
                      "--device=/dev/infiniband)");
  }
  return Status(Code::kNotFound,
                "no RDMA device on this host: load the modules of the card, or make a software "
                "device (rdma link add rxe0 type rxe netdev eth0)");
}

bool IsEmpty(const ibv_gid& gid) {
  // A GID is also empty if it has only the link-local prefix.
  return std::all_of(gid.raw + 8, gid.raw + 16, [](uint8_t byte) { return byte == 0; }) &&
         (std::all_of(gid.raw, gid.raw + 8, [](uint8_t byte) { return byte == 0; }) ||
          (gid.raw[0] == 0xfe && gid.raw[1] == 0x80));
}

std::string FolderOf(const ibv_device& device) {
  return device.ibdev_path[0] != '\0' ? std::string(device.ibdev_path)
                                      : std::string(kSysfs) + "/" + device.name;
}

// For Ethernet ports. Kernels without this file support RoCE v1 only.
GidType GidTypeFromSysfs(const ibv_device& device, int port, uint32_t index) {
  std::ifstream file(FolderOf(device) + "/ports/" + std::to_string(port) + "/gid_attrs/types/" +
                     std::to_string(index));
  std::string line;
  return std::getline(file, line) && line == "RoCE v2" ? GidType::kRoceV2 : GidType::kRoceV1;
}

// Returns false if the entry is empty or unreadable. Tables have holes, especially in containers.
bool ReadGid(const Library& library, ibv_context* context, const PortCandidate& port,
             uint32_t index, Gid* gid) {
  gid->index = index;
  const uint8_t number = static_cast<uint8_t>(port.number);
  ibv_gid_entry entry = {};
  const int error = library.query_gid_ex == nullptr
                        ? ENOSYS
                        : library.query_gid_ex(context, number, index, &entry, 0, sizeof(entry));
  if (error == 0) {
    gid->bytes = entry.gid;
    gid->type = !port.ethernet()                         ? GidType::kInfiniBand
                : entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? GidType::kRoceV2
                                                         : GidType::kRoceV1;
    return !IsEmpty(gid->bytes);
  }
  if (error == ENODATA) return false;
  if (library.query_gid(context, number, static_cast<int>(index), &gid->bytes) != 0 ||
      IsEmpty(gid->bytes)) {
    return false;
  }
  gid->type = port.ethernet() ? GidTypeFromSysfs(*context->device, port.number, index)
                              : GidType::kInfiniBand;
  return true;
}

// The attributes as newer versions of the library have them. The function by that name fills in
// only those that its first version had.
struct PortAttributes {
  ibv_port_attr known;
  uint32_t speed_ex;
};
static_assert(offsetof(ibv_port_attr, port_cap_flags2) == 48);

int QueryPort(const Library& library, ibv_context* context, uint8_t number, PortCandidate* port) {
  constexpr size_t kSpeedEx = 52;
  alignas(PortAttributes) char bytes[sizeof(PortAttributes)] = {};
  auto* const attributes = reinterpret_cast<ibv_port_attr*>(bytes);
  verbs_context* const full = verbs_get_ctx_op(context, query_port);
  errno = 0;
  const int result = full != nullptr ? full->query_port(context, number, attributes, sizeof(bytes))
                                     : library.query_port(context, number, attributes);
  std::memcpy(&port->attributes, bytes, sizeof(port->attributes));
  std::memcpy(&port->speed_ex, bytes + kSpeedEx, sizeof(port->speed_ex));
  return result;
}

void ReadPort(const Library& library, ibv_context* context, PortCandidate* port) {
  const uint8_t number = static_cast<uint8_t>(port->number);
  const int result = QueryPort(library, context, number, port);
  if (result != 0) {
    port->problem = VerbError(ErrorOf(result), "ibv_query_port", port->Name());
    return;
  }
  // The tables of inactive ports may be large and carry no information.
  if (port->attributes.state != IBV_PORT_ACTIVE) return;
  for (int i = 0; i < port->attributes.gid_tbl_len; ++i) {
    Gid gid;
    if (ReadGid(library, context, *port, static_cast<uint32_t>(i), &gid)) {
      port->gids.push_back(gid);
    }
  }
  for (int i = 0; i < port->attributes.pkey_tbl_len; ++i) {
    __be16 pkey = 0;
    if (library.query_pkey(context, number, i, &pkey) != 0) pkey = 0;
    port->pkeys.push_back(ntohs(pkey));
  }
}

struct Place {
  size_t device = 0;
  std::string folder;
  ibv_device_attr attributes = {};
};

// Opens the devices that the list permits. `places` receives the origin of each candidate.
void ReadCandidates(const Library& library, const host::DeviceList& list, Devices* devices,
                    std::vector<PortCandidate>* candidates, std::vector<Place>* places) {
  for (size_t i = 0; i < devices->count(); ++i) {
    ibv_device* device = devices->device(i);
    PortCandidate candidate;
    candidate.device = library.get_device_name(device);
    candidate.transport = device->transport_type;
    Place place;
    place.device = i;
    place.folder = FolderOf(*device) + "/device";
    candidate.far = !host::MayRunNear(place.folder);
    int ports = 0;
    if (list.MayUse(candidate.device) && HasReliableConnections(candidate.transport)) {
      ibv_context* context = devices->Open(i);
      if (context == nullptr) {
        candidate.problem =
            VerbError(errno == 0 ? ENODEV : errno, "ibv_open_device", candidate.device);
      } else {
        errno = 0;
        const int result = library.query_device(context, &place.attributes);
        if (result != 0) {
          candidate.problem = VerbError(ErrorOf(result), "ibv_query_device", candidate.device);
        } else if (ports = place.attributes.phys_port_cnt; ports == 0) {
          candidate.problem = Status(Code::kFailedPrecondition, "it has no ports");
        }
        for (int number = 1; number <= ports; ++number) {
          PortCandidate port = candidate;
          port.number = number;
          if (list.Place(port.device, number) >= 0) ReadPort(library, context, &port);
          candidates->push_back(std::move(port));
          places->push_back(place);
        }
      }
    }
    if (ports == 0) {
      candidates->push_back(std::move(candidate));
      places->push_back(place);
    }
  }
}

// Also fills `candidates` and `left_out` if no port is usable.
Status Choose(const Library& library, const VerbsSettings& settings, Devices* devices,
              std::vector<PortCandidate>* candidates, std::vector<Place>* places,
              std::vector<PortChoice>* choices, std::vector<std::string>* left_out,
              std::vector<size_t>* standby) {
  host::DeviceList list;
  RDMA_RETURN_IF_ERROR(host::ParseDeviceList(
      "RDMA_TRANSPORT_DEVICES", settings.devices,
      "names of devices with or without a port, such as mlx5_0:1,mlx5_1", &list));
  if (const int error = devices->Read(); error != 0) {
    return VerbError(error, "ibv_get_device_list", "this host");
  }
  if (devices->count() == 0) return NoDevices();
  ReadCandidates(library, list, devices, candidates, places);
  RDMA_RETURN_IF_ERROR(ChooseAmong(*candidates, list, settings, choices, left_out));
  if (standby == nullptr) return OkStatus();
  const PortCandidate& best = (*candidates)[choices->front().candidate];
  *standby = ChooseStandby(*candidates, list, best, kMaxPorts - choices->size());
  return OkStatus();
}

// What is known of a port also while it is not active.
Port Unknown(const PortCandidate& candidate, const Place& place) {
  Port port;
  port.device = candidate.device;
  port.folder = place.folder;
  port.number = static_cast<uint8_t>(candidate.number);
  port.ethernet = candidate.ethernet();
  port.attributes = place.attributes;
  return port;
}

void Know(const PortCandidate& candidate, const PortChoice& choice, Port* port) {
  port->gid = choice.gid;
  port->subnet_bits = SubnetBits(choice.gid, port->ethernet);
  port->lid = candidate.attributes.lid;
  port->grh_required = (candidate.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  port->pkey_index = choice.pkey_index;
  port->mtu = choice.mtu;
  port->largest_message = candidate.attributes.max_msg_sz;
  port->gigabits = GigabitsPerSecond(candidate);
  port->known = true;
}

// A card of equal speed may be for storage, and nothing that it says of itself shows that.
void TellOfSeveral(const std::vector<Port>& ports) {
  std::string names;
  std::set<std::string> cards;
  for (const Port& port : ports) {
    cards.insert(port.device);
    names += (names.empty() ? "" : ", ") + port.device + ":" + std::to_string(port.number) + " (" +
             port.gid.Text() + ")";
  }
  if (cards.size() < 2) return;
  Log(LogLevel::kInfo, "verbs: these ports share large transfers: " + names +
                           "; where some are for storage, name the others by "
                           "RDMA_TRANSPORT_DEVICES");
}

}  // namespace

bool Port::SameAddress(const Port& other) const {
  return known == other.known && ethernet == other.ethernet && gid == other.gid &&
         subnet_bits == other.subnet_bits && lid == other.lid &&
         grh_required == other.grh_required && pkey_index == other.pkey_index && mtu == other.mtu &&
         largest_message == other.largest_message && gigabits == other.gigabits;
}

std::string Port::Text() const {
  if (!known) return device + ":" + std::to_string(number) + " (not active yet)";
  return device + ":" + std::to_string(number) + " (" + GidTypeName(gid.type) +
         (ethernet ? "" : ", LID " + std::to_string(lid)) + ", GID " + std::to_string(gid.index) +
         " = " + gid.Text() + ", MTU " + std::to_string(MtuBytes(mtu)) + ")";
}

Status ChoosePorts(const Library& library, const VerbsSettings& settings, std::vector<Port>* ports,
                   std::vector<std::string>* left_out, std::vector<Port>* standby) {
  Devices devices(library);
  std::vector<PortCandidate> candidates;
  std::vector<Place> places;
  std::vector<PortChoice> choices;
  std::vector<size_t> later;
  RDMA_RETURN_IF_ERROR(Choose(library, settings, &devices, &candidates, &places, &choices, left_out,
                              standby == nullptr ? nullptr : &later));
  const auto open = [&](Port port, size_t device, std::vector<Port>* to) {
    port.context = devices.Take(device);
    if (port.context == nullptr) {
      left_out->push_back(port.device + ":" + std::to_string(port.number) + ": " +
                          VerbError(errno, "ibv_open_device", port.device).message());
      return;
    }
    to->push_back(std::move(port));
  };
  for (const PortChoice& choice : choices) {
    const PortCandidate& chosen = candidates[choice.candidate];
    const Place& place = places[choice.candidate];
    Port port = Unknown(chosen, place);
    Know(chosen, choice, &port);
    if (settings.mtu > MtuBytes(choice.mtu)) {
      Log(LogLevel::kWarning,
          "RDMA_TRANSPORT_MTU=" + std::to_string(settings.mtu) + " is more than " + chosen.Name() +
              " has active: " + std::to_string(MtuBytes(choice.mtu)) + " is used");
    }
    open(std::move(port), place.device, ports);
  }
  if (settings.devices.empty()) TellOfSeveral(*ports);
  for (const size_t i : later) open(Unknown(candidates[i], places[i]), places[i].device, standby);
  return OkStatus();
}

Status ReadAgain(const Library& library, const VerbsSettings& settings, const Port& port,
                 Port* fresh) {
  PortCandidate candidate;
  candidate.device = port.device;
  candidate.number = port.number;
  ReadPort(library, port.context, &candidate);
  PortChoice choice;
  RDMA_RETURN_IF_ERROR(ChooseUse(candidate, settings, &choice));
  if (port.known && settings.gid_index < 0) KeepGid(candidate, port.gid, &choice.gid);
  *fresh = port;
  fresh->ethernet = candidate.ethernet();
  Know(candidate, choice, fresh);
  return OkStatus();
}

Status SurveyPorts(const Library& library, const VerbsSettings& settings,
                   std::vector<PortCandidate>* candidates, std::vector<PortChoice>* choices,
                   std::vector<std::string>* left_out) {
  Devices devices(library);
  std::vector<Place> places;
  return Choose(library, settings, &devices, candidates, &places, choices, left_out, nullptr);
}

}  // namespace rdma_transport::fabric::verbs
