// Every RDMA_TRANSPORT_* setting, declared once: name, type, default and meaning. The documentation
// and the tools are generated from this table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace rdma_transport {

enum class FabricChoice { kAuto, kShm, kVerbs, kGrpc };

// What keeps peers from memory that they were not given, from the least to the most.
enum class Isolation { kOff, kAddress, kPeer };

// Of the verbs fabric. What a port or a device can do is less than some of these may ask for: the
// smaller one counts.
struct VerbsSettings {
  // What RING and QUEUE_DEPTH may be; what a peer asks for is held to the same bounds.
  static constexpr uint64_t kLeastRing = uint64_t{256} << 10;
  static constexpr uint64_t kMaxRing = uint64_t{64} << 20;
  static constexpr int kMaxQueueDepth = 4096;

  std::string library;      // what dlopen() takes
  std::string devices;      // NCCL's grammar; empty: all
  int gid_index = -1;       // -1: RoCE v2 preferred, IPv4 before IPv6
  uint32_t mtu = 0;         // bytes; 0: the port's active one
  int service_level = 0;    // 0 to 15
  int traffic_class = 0;    // 0 to 255
  int pkey = -1;            // the partition key's 15 bits; -1: the first full one
  Nanos retry_timeout = 0;  // of one attempt; rounded up to 4.096 us * 2^n
  int retries = 0;          // 0 to 7
  int queue_pairs = 0;      // per peer, 1 to 8
  int queue_depth = 0;      // work requests per queue pair
  uint64_t chunk = 0;       // bytes of one work request; 0: the device's largest message
  uint64_t ring = 0;        // bytes for notifications on their way, per peer
  bool relaxed_ordering = true;
  Isolation isolation = Isolation::kAddress;
};

struct Settings {
  FabricChoice fabric = FabricChoice::kAuto;
  bool allow_fallback = true;
  uint64_t arena_size = 0;  // bytes; 0: auto
  uint64_t arena_min_tensor = 0;
  uint64_t inline_max = 0;
  bool zero_copy = true;
  bool static_edges = true;
  bool checksum = false;
  Nanos spin = 0;
  Nanos peer_timeout = 0;
  Nanos connect_timeout = 0;
  LogLevel log_level = LogLevel::kInfo;
  std::string secret_file;  // empty: the job has no secret
  VerbsSettings verbs;
};

// One row of the table. `type` is what a person may type: "auto|shm", "size", "duration".
struct SettingRow {
  std::string name;  // with the prefix
  std::string type;
  std::string default_text;
  std::string meaning;
  std::function<Status(const std::string& text, Settings* settings)> apply;
};

const std::vector<SettingRow>& SettingsTable();

// Reads the environment (`environment` in the form of environ(7), null-terminated). A value that
// cannot be understood is an InvalidArgument that names the setting and what it takes; an unknown
// RDMA_TRANSPORT_* name is a warning that names the nearest known one.
Status LoadSettings(char** environment, Settings* settings, std::vector<std::string>* warnings);

// "64KiB", "1.5 GB", "4096" -> bytes.   "20us", "500 ms", "8s", "2min" -> nanoseconds.
Status ParseSize(const std::string& text, uint64_t* bytes);
Status ParseDuration(const std::string& text, Nanos* duration);

}  // namespace rdma_transport
