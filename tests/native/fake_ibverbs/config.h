// What devices there are, and how they behave: the keys documented in control.h.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fake_ibverbs {

struct GidEntry {
  bool present = false;
  ibv_gid_type type = IBV_GID_TYPE_IB;
  ibv_gid gid = {};
  bool operator==(const GidEntry& other) const;
};

struct PortConfig {
  ibv_port_state state = IBV_PORT_ACTIVE;
  uint8_t link_layer = IBV_LINK_LAYER_ETHERNET;
  ibv_mtu active_mtu = IBV_MTU_1024;
  ibv_mtu max_mtu = IBV_MTU_4096;
  uint16_t lid = 0;
  bool grh_required = false;
  // Its cable: only ports with the same number reach each other.
  uint64_t network = 0;
  // Bytes per second in each direction. 0: no limit.
  uint64_t bandwidth = 0;
  int64_t place_late_us = 0;
  uint64_t overtaken = 0;
  // What the port says of itself; 4 lanes of 25 Gb/s.
  uint8_t active_width = 2;
  uint8_t active_speed = 32;
  uint64_t active_speed_ex = 0;
  uint32_t max_msg_sz = 1U << 30;
  std::vector<uint16_t> pkeys = {0xffff};
  std::vector<GidEntry> gids;
  // Made from the numbers of device and port until set.
  bool default_lid = true;
  bool default_gids = true;
};

struct DeviceConfig {
  int open_error = 0;
  int rtr_error = 0;
  int max_qp_wr = 16384;
  int max_cqe = 1 << 20;
  static constexpr int max_sge = 16;
  int max_inline = 512;
  static constexpr int max_qp_rd_atom = 16;
  int max_qp = 4096;
  int max_mr = 1 << 20;
  bool same_iova = false;
  bool peer_memory = false;
  std::string sysfs;
  int comp_vectors = 4;
  std::vector<PortConfig> ports = std::vector<PortConfig>(1);
};

struct Config {
  int64_t delay_us = 0;
  int64_t retry_ms = 300;
  bool keep_qps = false;
  bool hold_rtr = false;
  bool quiet = false;
  uint64_t memlock = UINT64_MAX;
  ibv_fork_status fork = IBV_FORK_UNNEEDED;
  // The devices there are now, in order. Those taken away stay in `devices`: some may be open.
  std::vector<std::string> names;
  std::map<std::string, DeviceConfig> devices;
  DeviceConfig future;

  Config();
  // False for an unknown key or a bad value.
  bool Set(const std::string& key, const std::string& value);

 private:
  bool SetDevices(const std::string& value);
  bool SetOfDevice(DeviceConfig* device, size_t port, const std::string& key,
                   const std::string& value);
  void MakeAddresses();
};

std::vector<std::string> Split(const std::string& text, char separator);
bool ParseNumber(const std::string& text, uint64_t limit, uint64_t* number);
// A number or a name such as ENOMEM.
bool ParseErrno(const std::string& text, int* error);

}  // namespace fake_ibverbs
