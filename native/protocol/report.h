// What the process's transport did, and how it is set, as JSON texts for the tools.
#pragma once

#include <string>

namespace rdma_transport {

// Paths, bytes, copies, regions, peers. Zeros when nothing ran. Any thread.
std::string StatsJson();

// Every setting: name, type, default, meaning, source ("default" or "environment"), value; the
// first value that cannot be used ("error", empty if there is none), and names that are no
// setting's
// ("warnings").
std::string SettingsJson();

}  // namespace rdma_transport
