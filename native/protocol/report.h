// The transport's statistics and settings as JSON, for tools.
#pragma once

#include <string>

namespace rdma_transport {

class Runtime;

// Modes, bytes, copies, regions, peers. All zero if `runtime` is null. Callable on any thread.
std::string StatsJson(const Runtime* runtime);

// Every setting: name, type, default, meaning, source ("default" or "environment") and value; the
// first invalid value ("error", empty if none); and names that are not settings ("warnings").
std::string SettingsJson();

}  // namespace rdma_transport
