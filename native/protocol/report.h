// What the process's transport did, and how it is set, as JSON texts for the tools.
#pragma once

#include <string>

namespace rdma_transport {

// Paths, bytes, copies, regions, peers. Zeros when nothing ran. Any thread.
std::string StatsJson();

// Every setting: name, type, default, meaning, source ("default" or "environment"), value; and what
// is wrong with the environment, if anything is.
std::string SettingsJson();

}  // namespace rdma_transport
