// Declares every RDMA_TRANSPORT_* setting once: name, type, default and meaning. Documentation and
// tools are generated from this table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

namespace rdma_transport {

// Values of RDMA_TRANSPORT_FABRIC that are not the name of a fabric.
constexpr char kAutoFabric[] = "auto";  // the best fabric that reaches each peer
constexpr char kNoFabric[] = "grpc";    // no fabric: all tensors fall back to gRPC

// Whether cards read and write memory of accelerators themselves.
enum class GpuDirect { kOff, kAuto, kOn };

// Whether peers can guess the addresses of memory.
enum class Isolation { kOff, kAddress };

// Settings of the verbs fabric. If a port or device supports less than a setting requests, the
// smaller value applies.
struct VerbsSettings {
  // Bound of QUEUE_DEPTH. It also applies to what a peer requests.
  static constexpr int kMaxQueueDepth = 4096;

  std::string library;      // argument of dlopen()
  std::string devices;      // in NCCL's syntax; empty: all
  int gid_index = -1;       // -1: prefer RoCE v2, and IPv4 over IPv6
  std::string gid_range;    // "10.7.0.0/16"; empty: all
  uint32_t mtu = 0;         // in bytes; 0: active MTU of the port
  int service_level = 0;    // 0 to 15
  int traffic_class = -1;   // 0 to 255; -1: as is usual for the kind of network
  int pkey = -1;            // the low 15 bits; -1: the first with full membership
  Nanos retry_timeout = 0;  // per attempt; rounded up to 4.096 us * 2^n
  int retries = 0;          // 0 to 7
  int ports = 0;            // that share the transfers of a channel, 1 to 8
  int queue_depth = 0;      // work requests per queue pair
  uint64_t chunk = 0;       // bytes per work request; 0: the device's maximum message size
  uint64_t ring = 0;        // libfabric: bytes for notifications in flight, per peer
  bool relaxed_ordering = true;
  Isolation isolation = Isolation::kAddress;
};

// Settings of the libfabric fabric. `chunk` and `ring` of the verbs fabric are also its own.
struct LibfabricSettings {
  std::string library;    // argument of dlopen()
  std::string provider;   // a list as `devices` above; empty: a card's, then TCP
  std::string interface;  // the same; empty: all, the default route's first
};

struct Settings {
  std::string fabric = kAutoFabric;  // or kNoFabric, or the name of a fabric
  bool allow_fallback = true;
  uint64_t arena_size = 0;  // in bytes; 0: automatic
  uint64_t arena_min_tensor = 0;
  uint64_t inline_max = 0;
  bool zero_copy = true;
  bool static_edges = true;
  bool calls_over_fabric = true;   // false: worker calls of each step go over gRPC
  bool direct_collectives = true;  // false: TensorFlow's own algorithms
  bool checksum = false;
  std::string copy_inputs_of;  // types of operations, separated by commas
  GpuDirect gpu_direct = GpuDirect::kAuto;
  std::string cuda_library;  // argument of dlopen()
  Nanos spin = 0;
  Nanos peer_timeout = 0;
  Nanos connect_timeout = 0;
  Nanos start_timeout = 0;  // for all ranks of a job to meet
  Nanos stall_warning = 0;  // of collectives that are matched by name; 0: never
  Nanos stall_timeout = 0;
  LogLevel log_level = LogLevel::kInfo;
  std::string secret_file;  // empty: the job has no secret
  VerbsSettings verbs;
  LibfabricSettings libfabric;
};

// A row of the table. `type` describes valid input: "auto|shm", "size", "duration".
struct SettingRow {
  std::string name;  // with the prefix RDMA_TRANSPORT_
  std::string type;
  std::string default_text;
  std::string meaning;
  // Parses `text` into `settings`. Returns InvalidArgument if it is not valid.
  std::function<Status(const std::string& text, Settings* settings)> apply;
};

// Adds the name of a fabric to the values of RDMA_TRANSPORT_FABRIC, behind those added before. Only
// the registry of fabrics calls it, because this layer knows no fabric. Not thread-safe: call it
// before SettingsTable() and LoadSettings() are called.
void AddFabricName(std::string name);

// Returns all settings, in the order in which users see them. Thread-safe.
const std::vector<SettingRow>& SettingsTable();

// Reads settings from `environment`, a null-terminated array as in environ(7). Returns
// InvalidArgument, with the setting and its valid values, if a value is not valid. Adds a warning,
// with the closest known name, for each unknown RDMA_TRANSPORT_* name.
Status LoadSettings(char** environment, Settings* settings, std::vector<std::string>* warnings);

// Parse "64KiB", "1.5 GB" or "4096" to bytes, and "20us", "500 ms", "8s" or "2min" to nanoseconds.
// Return InvalidArgument if `text` is not valid.
Status ParseSize(const std::string& text, uint64_t* bytes);
Status ParseDuration(const std::string& text, Nanos* duration);

}  // namespace rdma_transport
