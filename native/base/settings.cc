#include "base/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "base/edit_distance.h"

namespace rdma_transport {
namespace {

constexpr char kPrefix[] = "RDMA_TRANSPORT_";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Splits "1.5 GiB" into 1.5 and "gib". Returns false if there is no number or it is not finite.
bool SplitNumber(const std::string& text, double* number, std::string* unit) {
  char* end = nullptr;
  *number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(*number) || *number < 0) return false;
  std::string rest(end);
  rest.erase(0, rest.find_first_not_of(' '));
  rest.erase(rest.find_last_not_of(' ') + 1);
  *unit = Lower(rest);
  return true;
}

template <typename T>
Status ParseWithUnits(const std::string& text, const std::map<std::string, double>& units,
                      const char* example, T* value) {
  double number = 0;
  std::string unit;
  const Status bad(Code::kInvalidArgument, "'" + text + "' is not " + example);
  if (!SplitNumber(text, &number, &unit)) return bad;
  const auto factor = units.find(unit);
  if (factor == units.end()) return bad;
  const double product = number * factor->second;
  if (product >= 9.2e18) return bad;
  *value = static_cast<T>(product);
  return OkStatus();
}

using Choices = std::vector<std::pair<std::string, std::function<void(Settings*)>>>;

SettingRow Choice(std::string name, std::string default_text, std::string meaning,
                  Choices choices) {
  std::string type;
  for (const auto& choice : choices) type += (type.empty() ? "" : "|") + choice.first;
  auto apply = [type, choices = std::move(choices)](const std::string& text, Settings* settings) {
    for (const auto& choice : choices) {
      if (Lower(text) == choice.first) {
        choice.second(settings);
        return OkStatus();
      }
    }
    return Status(Code::kInvalidArgument, "'" + text + "' is not one of " + type);
  };
  return {kPrefix + std::move(name), type, std::move(default_text), std::move(meaning), apply};
}

// Parses a whole number, decimal or 0x hexadecimal.
bool ParseInteger(const std::string& text, int64_t* value) {
  const bool hexadecimal = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  const char* digits = text.c_str() + (hexadecimal ? 2 : 0);
  const char* end = text.c_str() + text.size();
  const auto parsed = std::from_chars(digits, end, *value, hexadecimal ? 16 : 10);
  return parsed.ec == std::errc() && parsed.ptr == end && *value >= 0;
}

// In the rows below, `field` is a member of Settings or a function that finds one in a Settings*.
template <typename Field>
SettingRow Size(std::string name, std::string default_text, std::string meaning, Field field) {
  auto apply = [field](const std::string& text, Settings* settings) {
    return ParseSize(text, &std::invoke(field, settings));
  };
  return {kPrefix + std::move(name), "size", std::move(default_text), std::move(meaning), apply};
}

template <typename Field>
SettingRow Duration(std::string name, std::string default_text, std::string meaning, Field field) {
  auto apply = [field](const std::string& text, Settings* settings) {
    return ParseDuration(text, &std::invoke(field, settings));
  };
  return {kPrefix + std::move(name), "duration", std::move(default_text), std::move(meaning),
          apply};
}

template <typename Field>
SettingRow Integer(std::string name, int low, int high, std::string default_text,
                   std::string meaning, Field field) {
  auto apply = [low, high, field](const std::string& text, Settings* settings) {
    int64_t value = 0;
    if (!ParseInteger(text, &value) || value < low || value > high) {
      return Status(Code::kInvalidArgument, "'" + text + "' is not an integer from " +
                                                std::to_string(low) + " to " +
                                                std::to_string(high));
    }
    std::invoke(field, settings) = static_cast<int>(value);
    return OkStatus();
  };
  return {kPrefix + std::move(name), std::to_string(low) + ".." + std::to_string(high),
          std::move(default_text), std::move(meaning), apply};
}

template <typename Field>
SettingRow Text(std::string name, std::string default_text, std::string meaning, Field field) {
  auto apply = [field](const std::string& text, Settings* settings) {
    std::invoke(field, settings) = text;
    return OkStatus();
  };
  return {kPrefix + std::move(name), "text", std::move(default_text), std::move(meaning), apply};
}

// Like `row`, with bounds. `low` and `high` are in the form that users type.
template <typename Field, typename Value>
SettingRow Between(const char* low, const char* high, SettingRow row, Field field,
                   Status (*parse)(const std::string&, Value*)) {
  const std::string range =
      high == nullptr ? std::string("at least ") + low : std::string("from ") + low + " to " + high;
  Value lowest = 0;
  Value highest = std::numeric_limits<Value>::max();
  parse(low, &lowest).IgnoreError();
  if (high != nullptr) parse(high, &highest).IgnoreError();
  row.apply = [=, kind = row.type, apply = row.apply](const std::string& text, Settings* settings) {
    RDMA_RETURN_IF_ERROR(apply(text, settings));
    const Value value = std::invoke(field, settings);
    if (value >= lowest && value <= highest) return OkStatus();
    return Status(Code::kInvalidArgument, "'" + text + "' is not a " + kind + " " + range);
  };
  return row;
}

// Like `row`, but also accepts "auto".
SettingRow OrAuto(SettingRow row, std::function<void(Settings*)> set) {
  row.apply = [apply = row.apply, set = std::move(set)](const std::string& text,
                                                        Settings* settings) {
    if (Lower(text) != "auto") {
      const Status status = apply(text, settings);
      return status.ok() ? status : Status(status.code(), status.message() + ", nor auto");
    }
    set(settings);
    return OkStatus();
  };
  row.type = "auto|" + row.type;
  return row;
}

// The name or path of a library, by default `library`.
template <typename Field>
SettingRow LibraryName(std::string name, const std::string& library, std::string meaning,
                       Field field) {
  SettingRow row = Text(std::move(name), library, std::move(meaning), field);
  row.apply = [library, apply = row.apply](const std::string& text, Settings* settings) {
    if (!text.empty()) return apply(text, settings);
    return Status(Code::kInvalidArgument,
                  "'' is not the name or path of a library, such as " + library);
  };
  return row;
}

void AddLibfabricRows(std::vector<SettingRow>* rows) {
  rows->push_back(LibraryName("LIBFABRIC", "libfabric.so.1",
                              "the host's libfabric, as dlopen() takes it",
                              [](Settings* s) -> std::string& { return s->libfabric.library; }));
  rows->push_back(Text("LIBFABRIC_PROVIDER", "",
                       "which providers of libfabric may be used, in the order of preference: "
                       "efa,tcp; with = and ^ as in DEVICES; empty: a card's, then TCP",
                       [](Settings* s) -> std::string& { return s->libfabric.provider; }));
  rows->push_back(Text("LIBFABRIC_INTERFACE", "",
                       "which network interfaces libfabric may use, in the order of preference: "
                       "eth1,eth0; with = and ^ as in DEVICES; empty: all, the default route's "
                       "first",
                       [](Settings* s) -> std::string& { return s->libfabric.interface; }));
}

void AddVerbsRows(std::vector<SettingRow>* rows) {
  rows->push_back(LibraryName("LIBIBVERBS", "libibverbs.so.1",
                              "the host's verbs library, as dlopen() takes it",
                              [](Settings* s) -> std::string& { return s->verbs.library; }));
  rows->push_back(
      Text("DEVICES", "",
           "which RDMA ports may be used, in the order of preference: mlx5_0:1,mlx5_1; "
           "names are prefixes; = in front: exact names; ^ in front: all but these; "
           "empty: all, the fastest first, and of these those near the task's processors. "
           "All of the first one's kind and speed are opened",
           [](Settings* s) -> std::string& { return s->verbs.devices; }));
  rows->push_back(
      OrAuto(Integer("GID_INDEX", 0, 65535, "auto",
                     "entry of the port's GID table; auto: RoCE v2 before v1, IPv4 before IPv6",
                     [](Settings* s) -> int& { return s->verbs.gid_index; }),
             [](Settings* s) { s->verbs.gid_index = -1; }));
  rows->push_back(Text("GID_RANGE", "",
                       "RoCE: subnet of the GIDs to choose from, such as 10.7.0.0/16, ::/0 or "
                       "0.0.0.0/0; empty: all",
                       [](Settings* s) -> std::string& { return s->verbs.gid_range; }));
  const auto mtu = [](uint32_t bytes) {
    return std::pair<std::string, std::function<void(Settings*)>>(
        std::to_string(bytes), [bytes](Settings* s) { s->verbs.mtu = bytes; });
  };
  rows->push_back(Choice("MTU", "auto",
                         "most bytes of one packet on the wire; auto: what the port has active",
                         {{"auto", [](Settings* s) { s->verbs.mtu = 0; }},
                          mtu(256),
                          mtu(512),
                          mtu(1024),
                          mtu(2048),
                          mtu(4096)}));
  rows->push_back(Integer("SERVICE_LEVEL", 0, 15, "0",
                          "InfiniBand service level; with RoCE the Ethernet priority of packets "
                          "in a VLAN",
                          [](Settings* s) -> int& { return s->verbs.service_level; }));
  rows->push_back(OrAuto(Integer("TRAFFIC_CLASS", 0, 255, "auto",
                                 "traffic class of the packets; with RoCE v2 it is DSCP times 4; "
                                 "auto: 106 with RoCE v2 (DSCP 26), otherwise 0",
                                 [](Settings* s) -> int& { return s->verbs.traffic_class; }),
                         [](Settings* s) { s->verbs.traffic_class = -1; }));
  rows->push_back(Integer("PKEY", 1, 65535, "auto",
                          "partition key, such as 0x7fff (0x8000, the bit of full membership, does "
                          "not count); auto: the port's first one with full membership",
                          [](Settings* s) -> int& { return s->verbs.pkey; }));
  rows->back().apply = [apply = rows->back().apply](const std::string& text, Settings* settings) {
    const Status status = apply(text, settings);
    settings->verbs.pkey &= 0x7fff;
    if (status.ok() && settings->verbs.pkey != 0) return status;
    return Status(Code::kInvalidArgument,
                  "'" + text + "' is not a partition key from 0x1 to 0x7fff");
  };
  rows->back().type = "0x1..0x7fff";
  rows->back() =
      OrAuto(std::move(rows->back()), [](Settings* settings) { settings->verbs.pkey = -1; });
  const auto retry_timeout = [](Settings* s) -> Nanos& { return s->verbs.retry_timeout; };
  rows->push_back(Between(
      "8us", "8796s",
      Duration("RETRY_TIMEOUT", "536ms",
               "how long the card waits for an answer to a packet before it sends it again; "
               "rounded up to 4.096us times a power of two",
               retry_timeout),
      retry_timeout, &ParseDuration));
  rows->push_back(Integer("RETRIES", 0, 7, "6",
                          "how often the card sends a packet again before the peer counts as "
                          "unreachable; with Soft-RoCE, 7 means no limit",
                          [](Settings* s) -> int& { return s->verbs.retries; }));
  rows->push_back(Integer("PORTS", 1, 8, "8",
                          "most ports that share the large transfers to a peer, and replace each "
                          "other",
                          [](Settings* s) -> int& { return s->verbs.ports; }));
  rows->push_back(Integer("QUEUE_DEPTH", 16, VerbsSettings::kMaxQueueDepth, "256",
                          "most work requests under way on one queue pair",
                          [](Settings* s) -> int& { return s->verbs.queue_depth; }));
  const auto chunk = [](Settings* s) -> uint64_t& { return s->verbs.chunk; };
  rows->push_back(
      OrAuto(Between("4KiB", nullptr,
                     Size("CHUNK", "auto",
                          "most bytes of one work request (4KiB at least); auto: by the "
                          "port's speed",
                          chunk),
                     chunk, &ParseSize),
             [](Settings* s) { s->verbs.chunk = 0; }));
  const auto ring = [](Settings* s) -> uint64_t& { return s->verbs.ring; };
  rows->push_back(Between("256KiB", "64MiB",
                          Size("RING", "1MiB",
                               "the buffer for notifications from one peer over libfabric (256KiB "
                               "to 64MiB)",
                               ring),
                          ring, &ParseSize));
  rows->push_back(Choice("RELAXED_ORDERING", "on",
                         "off: the card may not reorder its writes to memory on the PCIe bus",
                         {{"on", [](Settings* s) { s->verbs.relaxed_ordering = true; }},
                          {"off", [](Settings* s) { s->verbs.relaxed_ordering = false; }}}));
  const auto isolation = [](Isolation level) {
    return [level](Settings* s) { s->verbs.isolation = level; };
  };
  rows->push_back(
      Choice("ISOLATION", "address",
             "how memory is protected from peers; address: its addresses are random; "
             "off: for cards that map memory only at its own address",
             {{"off", isolation(Isolation::kOff)}, {"address", isolation(Isolation::kAddress)}}));
}

std::vector<std::string>& FabricNames() {
  static auto* names = new std::vector<std::string>;
  return *names;
}

Choices FabricChoices() {
  Choices choices;
  const auto add = [&choices](const std::string& name) {
    choices.emplace_back(name, [name](Settings* s) { s->fabric = name; });
  };
  add(kAutoFabric);
  for (const std::string& name : FabricNames()) add(name);
  add(kNoFabric);
  return choices;
}

std::vector<SettingRow> MakeTable() {
  std::vector<SettingRow> rows;
  rows.push_back(Choice("FABRIC", "auto",
                        "how tensors reach peers; auto takes the best that reaches each peer",
                        FabricChoices()));
  rows.push_back(Choice("FALLBACK", "allow",
                        "forbid: a tensor that the fabric cannot carry is an error instead of "
                        "falling back to gRPC; one for a peer that does not answer yet waits up to "
                        "CONNECT_TIMEOUT",
                        {{"allow", [](Settings* s) { s->allow_fallback = true; }},
                         {"forbid", [](Settings* s) { s->allow_fallback = false; }}}));
  rows.push_back(OrAuto(Size("ARENA_SIZE", "auto",
                             "most memory that tensors and slots may take; auto: three quarters of "
                             "the memory available to this process, shared by the cluster's tasks "
                             "on this host",
                             &Settings::arena_size),
                        [](Settings* s) { s->arena_size = 0; }));
  rows.push_back(Size("ARENA_MIN_TENSOR", "4KiB",
                      "a task's tensors larger than this are allocated in the arena",
                      &Settings::arena_min_tensor));
  rows.push_back(Size("INLINE_MAX", "4KiB",
                      "tensors of at most this size ride in the notification (64KiB at most)",
                      &Settings::inline_max));
  rows.push_back(Choice("ZERO_COPY", "on",
                        "off: a consumer copies what it could have read in the producer's memory",
                        {{"on", [](Settings* s) { s->zero_copy = true; }},
                         {"off", [](Settings* s) { s->zero_copy = false; }}}));
  rows.push_back(Choice("STATIC", "on",
                        "off: no tensor gets a place before it is sent; each needs a descriptor",
                        {{"on", [](Settings* s) { s->static_edges = true; }},
                         {"off", [](Settings* s) { s->static_edges = false; }}}));
  rows.push_back(Choice("STEP_CALLS", "fabric",
                        "how a session's master starts a step on other tasks, and cleans up after "
                        "it; fabric: by notifications, once the peer is linked; grpc: by calls of "
                        "gRPC",
                        {{"fabric", [](Settings* s) { s->calls_over_fabric = true; }},
                         {"grpc", [](Settings* s) { s->calls_over_fabric = false; }}}));
  rows.push_back(Choice("COLLECTIVES", "direct",
                        "how TensorFlow's tasks reduce tensors; direct: each task "
                        "reduces a part out of the memory of all; ring: TensorFlow's algorithm, "
                        "with the same bits as over gRPC for any number of tasks",
                        {{"direct", [](Settings* s) { s->direct_collectives = true; }},
                         {"ring", [](Settings* s) { s->direct_collectives = false; }}}));
  // The packages for data-parallel training read this setting.
  rows.push_back(Choice("GRADIENTS", "auto",
                        "how ranks send gradients; dense: as they are; factors: those that are a "
                        "product of matrices as its factors; auto: those whose factors take less "
                        "time, by measured speeds; bf16, fp16: float32 in half the bytes, added "
                        "in float32",
                        {{"auto", [](Settings*) {}},
                         {"dense", [](Settings*) {}},
                         {"factors", [](Settings*) {}},
                         {"bf16", [](Settings*) {}},
                         {"fp16", [](Settings*) {}}}));
  rows.push_back(Choice("CHECKSUM", "off",
                        "on: tensors that this task sends carry a checksum, and one that arrives "
                        "changed is an error",
                        {{"on", [](Settings* s) { s->checksum = true; }},
                         {"off", [](Settings* s) { s->checksum = false; }}}));
  rows.push_back(Text("COPY_INPUTS_OF", "",
                      "custom operations, by type, that keep an input or write into it without "
                      "asking TensorFlow; separated by commas. They get copies of what arrives",
                      &Settings::copy_inputs_of));
  const auto gpu_direct = [](GpuDirect mode) {
    return [mode](Settings* s) { s->gpu_direct = mode; };
  };
  rows.push_back(Choice("GPU_DIRECT", "auto",
                        "whether RDMA cards read and write memory of GPUs themselves; auto: where "
                        "the driver exports it; on: it is an error if the driver cannot; off: "
                        "tensors are copied into the host's memory",
                        {{"auto", gpu_direct(GpuDirect::kAuto)},
                         {"on", gpu_direct(GpuDirect::kOn)},
                         {"off", gpu_direct(GpuDirect::kOff)}}));
  rows.push_back(LibraryName("LIBCUDA", "libcuda.so.1", "the CUDA driver, as dlopen() takes it",
                             [](Settings* s) -> std::string& { return s->cuda_library; }));
  rows.push_back(Duration("SPIN", "200us",
                          "how long the polling thread spins after the last message before it "
                          "sleeps",
                          &Settings::spin));
  rows.push_back(Duration("PEER_TIMEOUT", "8s",
                          "a peer that is waited for and silent this long counts as gone",
                          &Settings::peer_timeout));
  rows.push_back(Duration("CONNECT_TIMEOUT", "10s",
                          "how long the first contact with a peer may take",
                          &Settings::connect_timeout));
  rows.push_back(Between("1s", nullptr,
                         Duration("START_TIMEOUT", "60s",
                                  "how long the ranks of a job may take to meet, from the first to "
                                  "the last",
                                  &Settings::start_timeout),
                         &Settings::start_timeout, &ParseDuration));
  rows.push_back(
      Duration("STALL_WARNING", "60s",
               "a collective of rdma_transport.tensorflow that waits this long for ranks "
               "that did not call it is logged, with their numbers; 0: never",
               &Settings::stall_warning));
  rows.push_back(Duration("STALL_TIMEOUT", "0",
                          "and one that waits this long fails on all ranks that wait; 0: never",
                          &Settings::stall_timeout));
  rows.push_back(Choice("LOG_LEVEL", "info",
                        "the least severe level that is logged, whatever TF_CPP_MIN_LOG_LEVEL is",
                        {{"debug", [](Settings* s) { s->log_level = LogLevel::kDebug; }},
                         {"info", [](Settings* s) { s->log_level = LogLevel::kInfo; }},
                         {"warning", [](Settings* s) { s->log_level = LogLevel::kWarning; }},
                         {"error", [](Settings* s) { s->log_level = LogLevel::kError; }},
                         {"off", [](Settings* s) { s->log_level = LogLevel::kOff; }}}));
  rows.push_back(Text("SECRET_FILE", "",
                      "file with the secret that all tasks of the job hold, by which they "
                      "authenticate each other; empty: they do not",
                      &Settings::secret_file));
  AddVerbsRows(&rows);
  AddLibfabricRows(&rows);
  // The autoload guard reads this setting before the process loads this library.
  rows.push_back(Choice("DISABLE", "0", "1: the plugin is not loaded at all",
                        {{"0", [](Settings*) {}},
                         {"1", [](Settings*) {}},
                         {"false", [](Settings*) {}},
                         {"true", [](Settings*) {}}}));
  return rows;
}

std::string NearestName(const std::string& name) {
  const auto& rows = SettingsTable();
  const auto nearest =
      std::min_element(rows.begin(), rows.end(), [&](const SettingRow& a, const SettingRow& b) {
        return EditDistance(name, a.name) < EditDistance(name, b.name);
      });
  return nearest->name;
}

}  // namespace

void AddFabricName(std::string name) { FabricNames().push_back(std::move(name)); }

const std::vector<SettingRow>& SettingsTable() {
  static const auto* table = new std::vector<SettingRow>(MakeTable());
  return *table;
}

Status ParseSize(const std::string& text, uint64_t* bytes) {
  static const auto* units = new std::map<std::string, double>{{"", 1},
                                                               {"b", 1},
                                                               {"k", 1024.0},
                                                               {"kb", 1e3},
                                                               {"kib", 1024.0},
                                                               {"m", 1048576.0},
                                                               {"mb", 1e6},
                                                               {"mib", 1048576.0},
                                                               {"g", 1073741824.0},
                                                               {"gb", 1e9},
                                                               {"gib", 1073741824.0},
                                                               {"t", 1099511627776.0},
                                                               {"tb", 1e12},
                                                               {"tib", 1099511627776.0}};
  return ParseWithUnits(text, *units, "a size such as 4096, 64KiB or 1.5GB", bytes);
}

Status ParseDuration(const std::string& text, Nanos* duration) {
  static const auto* units = new std::map<std::string, double>{
      {"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}};
  double number = 0;
  std::string unit;
  if (SplitNumber(text, &number, &unit) && number == 0 && unit.empty()) {
    *duration = 0;
    return OkStatus();
  }
  return ParseWithUnits(text, *units, "a duration with its unit, such as 20us, 500ms or 8s",
                        duration);
}

Status LoadSettings(char** environment, Settings* settings, std::vector<std::string>* warnings) {
  std::map<std::string, std::string> given;
  const std::string prefix = kPrefix;
  for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos && text.compare(0, prefix.size(), prefix) == 0) {
      given[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  for (const SettingRow& row : SettingsTable()) {
    const auto found = given.find(row.name);
    const std::string text = found == given.end() ? row.default_text : found->second;
    if (found != given.end()) given.erase(found);
    const Status status = row.apply(text, settings);
    if (!status.ok()) return Status(status.code(), row.name + ": " + status.message());
  }
  if (settings->inline_max > 64 * 1024) {
    return Status(Code::kInvalidArgument,
                  "RDMA_TRANSPORT_INLINE_MAX: at most 64KiB can ride in a notification");
  }
  if (settings->peer_timeout <= 0 || settings->connect_timeout <= 0) {
    return Status(Code::kInvalidArgument,
                  "RDMA_TRANSPORT_PEER_TIMEOUT and RDMA_TRANSPORT_CONNECT_TIMEOUT must be above 0");
  }
  for (const auto& [name, value] : given) {
    warnings->push_back(name + " is not a known setting; did you mean " + NearestName(name) + "?");
  }
  return OkStatus();
}

}  // namespace rdma_transport
