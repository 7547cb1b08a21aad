#include "config.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace fake_ibverbs {
namespace {

bool ParseInt(const std::string& text, int* number) {
  uint64_t parsed = 0;
  if (!ParseNumber(text, INT_MAX, &parsed)) return false;
  *number = static_cast<int>(parsed);
  return true;
}

bool ParseDuration(const std::string& text, int64_t* number) {
  uint64_t parsed = 0;
  if (!ParseNumber(text, 1000000000, &parsed)) return false;
  *number = static_cast<int64_t>(parsed);
  return true;
}

bool ParseFlag(const std::string& text, bool* flag) {
  *flag = text == "1";
  return text == "0" || text == "1";
}

bool ParseMtu(const std::string& text, ibv_mtu* mtu) {
  const std::map<std::string, ibv_mtu> values = {{"256", IBV_MTU_256},
                                                 {"512", IBV_MTU_512},
                                                 {"1024", IBV_MTU_1024},
                                                 {"2048", IBV_MTU_2048},
                                                 {"4096", IBV_MTU_4096}};
  const auto it = values.find(text);
  if (it == values.end()) return false;
  *mtu = it->second;
  return true;
}

bool ParsePortState(const std::string& text, ibv_port_state* state) {
  const std::map<std::string, ibv_port_state> values = {{"active", IBV_PORT_ACTIVE},
                                                        {"down", IBV_PORT_DOWN},
                                                        {"init", IBV_PORT_INIT},
                                                        {"armed", IBV_PORT_ARMED}};
  const auto it = values.find(text);
  if (it == values.end()) return false;
  *state = it->second;
  return true;
}

bool ParseGid(const std::string& text, GidEntry* entry) {
  *entry = GidEntry();
  if (text == "none") return true;
  const std::map<std::string, ibv_gid_type> types = {
      {"ib", IBV_GID_TYPE_IB}, {"rocev1", IBV_GID_TYPE_ROCE_V1}, {"rocev2", IBV_GID_TYPE_ROCE_V2}};
  const size_t colon = text.find(':');
  if (colon == std::string::npos) return false;
  const auto type = types.find(text.substr(0, colon));
  if (type == types.end()) return false;
  const std::string address = text.substr(colon + 1);
  if (inet_pton(AF_INET6, address.c_str(), entry->gid.raw) != 1) {
    entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
    if (inet_pton(AF_INET, address.c_str(), entry->gid.raw + 12) != 1) return false;
  }
  entry->type = type->second;
  entry->present = true;
  return true;
}

bool ParseGids(const std::string& text, std::vector<GidEntry>* gids) {
  std::vector<GidEntry> parsed;
  for (const std::string& part : Split(text, ',')) {
    parsed.emplace_back();
    if (!ParseGid(part, &parsed.back())) return false;
  }
  *gids = std::move(parsed);
  return true;
}

bool ParsePkeys(const std::string& text, std::vector<uint16_t>* pkeys) {
  std::vector<uint16_t> parsed;
  for (const std::string& part : Split(text, ',')) {
    uint64_t number = 0;
    if (!ParseNumber(part, 0xffff, &number)) return false;
    parsed.push_back(static_cast<uint16_t>(number));
  }
  *pkeys = std::move(parsed);
  return true;
}

// Both count from 0.
void MakeAddressesOf(int device, int number, PortConfig* port) {
  const std::string ipv4 = "10.0." + std::to_string(number) + "." + std::to_string(device + 1);
  const std::string ipv6 = "fe80::" + std::to_string(number) + ":" + std::to_string(device + 1);
  const bool infiniband = port->link_layer == IBV_LINK_LAYER_INFINIBAND;
  if (port->default_lid) {
    port->lid = infiniband ? static_cast<uint16_t>(number * 256 + device + 1) : 0;
  }
  if (port->default_gids) {
    ParseGids(infiniband
                  ? "ib:" + ipv6
                  : "rocev1:" + ipv6 + ",rocev2:" + ipv6 + ",rocev1:" + ipv4 + ",rocev2:" + ipv4,
              &port->gids);
  }
}

bool SetOfPort(PortConfig* port, const std::string& key, const std::string& value) {
  uint64_t number = 0;
  if (key == "link_layer") {
    if (value != "ethernet" && value != "infiniband") return false;
    port->link_layer = value == "ethernet" ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    port->default_lid = port->default_gids = true;
    return true;
  }
  if (key == "port_state") return ParsePortState(value, &port->state);
  if (key == "network") return ParseNumber(value, UINT32_MAX, &port->network);
  if (key == "overtaken") return ParseNumber(value, UINT32_MAX, &port->overtaken);
  if (key == "place_late_us") return ParseDuration(value, &port->place_late_us);
  if (key == "bandwidth") return ParseNumber(value, UINT64_MAX, &port->bandwidth);
  if (key == "active_width" || key == "active_speed") {
    if (!ParseNumber(value, UINT8_MAX, &number)) return false;
    (key == "active_width" ? port->active_width : port->active_speed) =
        static_cast<uint8_t>(number);
    return true;
  }
  if (key == "active_speed_ex") return ParseNumber(value, UINT32_MAX, &port->active_speed_ex);
  if (key == "active_mtu") return ParseMtu(value, &port->active_mtu);
  if (key == "max_mtu") return ParseMtu(value, &port->max_mtu);
  if (key == "pkeys") return ParsePkeys(value, &port->pkeys);
  if (key == "max_msg_sz") {
    if (!ParseNumber(value, 1U << 31, &number)) return false;
    port->max_msg_sz = static_cast<uint32_t>(number);
    return true;
  }
  if (key == "lid") {
    if (!ParseNumber(value, 0xffff, &number)) return false;
    port->lid = static_cast<uint16_t>(number);
    port->default_lid = false;
    return true;
  }
  if (key == "grh_required") return ParseFlag(value, &port->grh_required);
  if (key == "gids") {
    if (!ParseGids(value, &port->gids)) return false;
    port->default_gids = false;
    return true;
  }
  return false;
}

}  // namespace

bool GidEntry::operator==(const GidEntry& other) const {
  return present == other.present && type == other.type &&
         std::memcmp(gid.raw, other.gid.raw, sizeof(gid.raw)) == 0;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

bool ParseNumber(const std::string& text, uint64_t limit, uint64_t* number) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  errno = 0;
  const unsigned long long parsed = std::strtoull(text.c_str(), &end, 0);
  if (errno != 0 || *end != '\0' || parsed > limit) return false;
  *number = parsed;
  return true;
}

bool ParseErrno(const std::string& text, int* error) {
  const std::map<std::string, int> names = {
      {"EPERM", EPERM},   {"ENOENT", ENOENT}, {"EIO", EIO},       {"EAGAIN", EAGAIN},
      {"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EFAULT", EFAULT}, {"EBUSY", EBUSY},
      {"ENODEV", ENODEV}, {"EINVAL", EINVAL}, {"EMFILE", EMFILE}, {"ENOSPC", ENOSPC},
      {"ENOSYS", ENOSYS}, {"EINTR", EINTR},   {"ENXIO", ENXIO},   {"EOPNOTSUPP", EOPNOTSUPP},
  };
  const auto it = names.find(text);
  if (it != names.end()) *error = it->second;
  return it != names.end() || ParseInt(text, error);
}

Config::Config() { SetDevices("fake_0"); }

bool Config::SetDevices(const std::string& value) {
  names = Split(value, ',');
  for (const std::string& name : names) {
    if (name.size() >= IBV_SYSFS_NAME_MAX) return false;
    devices.emplace(name, future);
  }
  MakeAddresses();
  return true;
}

void Config::MakeAddresses() {
  for (size_t i = 0; i < names.size(); ++i) {
    DeviceConfig& device = devices.at(names[i]);
    for (size_t port = 0; port < device.ports.size(); ++port) {
      MakeAddressesOf(static_cast<int>(i), static_cast<int>(port), &device.ports[port]);
    }
  }
}

bool Config::SetOfDevice(DeviceConfig* device, size_t port, const std::string& key,
                         const std::string& value) {
  uint64_t number = 0;
  const std::map<std::string, int*> numbers = {
      {"max_qp_wr", &device->max_qp_wr},   {"max_cqe", &device->max_cqe},
      {"max_inline", &device->max_inline}, {"max_qp", &device->max_qp},
      {"max_mr", &device->max_mr},         {"comp_vectors", &device->comp_vectors}};
  const auto it = numbers.find(key);
  if (it != numbers.end()) return ParseInt(value, it->second);
  if (key == "iova") {
    device->same_iova = value == "same";
    return value == "same" || value == "any";
  }
  if (key == "peer_memory") return ParseFlag(value, &device->peer_memory);
  if (key == "sysfs") {
    device->sysfs = value;
    return value.size() < IBV_SYSFS_PATH_MAX;
  }
  if (key == "open_error") return ParseErrno(value, &device->open_error);
  if (key == "rtr_error") return ParseErrno(value, &device->rtr_error);
  if (key == "ports") {
    if (!ParseNumber(value, 32, &number) || number == 0) return false;
    device->ports.resize(number, device->ports.front());
    return true;
  }
  if (port > device->ports.size()) return false;
  for (size_t i = 0; i < device->ports.size(); ++i) {
    if (port != 0 && port != i + 1) continue;
    if (!SetOfPort(&device->ports[i], key, value)) return false;
  }
  return true;
}

bool Config::Set(const std::string& full_key, const std::string& value) {
  if (full_key == "devices") return SetDevices(value);
  if (full_key == "delay_us") return ParseDuration(value, &delay_us);
  if (full_key == "retry_ms") return ParseDuration(value, &retry_ms);
  if (full_key == "keep_qps") return ParseFlag(value, &keep_qps);
  if (full_key == "hold_rtr") return ParseFlag(value, &hold_rtr);
  if (full_key == "quiet") return ParseFlag(value, &quiet);
  if (full_key == "memlock") return ParseNumber(value, UINT64_MAX, &memlock);
  if (full_key == "fork") {
    const std::vector<std::string> values = {"disabled", "enabled", "unneeded"};
    const auto it = std::find(values.begin(), values.end(), value);
    if (it == values.end()) return false;
    fork = static_cast<ibv_fork_status>(it - values.begin());
    return true;
  }
  std::vector<DeviceConfig*> targets;
  uint64_t port = 0;
  std::string key = full_key;
  const size_t dot = full_key.find('.');
  if (dot == std::string::npos) {
    for (auto& [name, device] : devices) targets.push_back(&device);
    targets.push_back(&future);
  } else {
    key = full_key.substr(dot + 1);
    std::string name = full_key.substr(0, dot);
    const size_t colon = name.find(':');
    if (colon != std::string::npos) {
      if (!ParseNumber(name.substr(colon + 1), 32, &port) || port == 0) return false;
      name.resize(colon);
    }
    const auto it = devices.find(name);
    if (it == devices.end()) return false;
    targets.push_back(&it->second);
  }
  for (DeviceConfig* target : targets) {
    if (!SetOfDevice(target, port, key, value)) return false;
  }
  MakeAddresses();
  return true;
}

}  // namespace fake_ibverbs
