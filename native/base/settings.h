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

struct Settings {
  FabricChoice fabric = FabricChoice::kAuto;
  bool allow_fallback = true;
  uint64_t arena_size = 0;  // bytes; 0: three quarters of the memory this process may use
  uint64_t arena_min_tensor = 0;
  uint64_t inline_max = 0;
  bool zero_copy = true;
  bool static_edges = true;
  Nanos spin = 0;
  Nanos peer_timeout = 0;
  Nanos connect_timeout = 0;
  LogLevel log_level = LogLevel::kInfo;
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
