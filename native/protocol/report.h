// The transport's statistics and settings as JSON, for tools.
#pragma once

#include <string>

namespace rdma_transport {

// Modes, bytes, copies, regions, peers. All zero if nothing ran. Callable on any thread.
std::string StatsJson();

// Every setting: name, type, default, meaning, source ("default" or "environment") and value; the
// first invalid value ("error", empty if none); and names that are not settings ("warnings").
std::string SettingsJson();

}  // namespace rdma_transport
