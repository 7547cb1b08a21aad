// The fabric under test: shared memory, unless the environment names another one by
// RDMA_TRANSPORT_FABRIC. The same tests thus run over shared memory, over verbs on a fake library,
// over verbs on a real port, over libfabric, and over the loopback fabric.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/settings.h"

namespace rdma_transport::testing {

inline Settings FabricSettings() {
  Settings settings;
  std::vector<std::string> warnings;
  const Status loaded = LoadSettings(environ, &settings, &warnings);
  EXPECT_TRUE(loaded.ok()) << loaded.message();
  if (settings.fabric == kAutoFabric) settings.fabric = "shm";
  return settings;
}

inline bool OnShm() { return FabricSettings().fabric == "shm"; }
inline bool OnLoopback() { return FabricSettings().fabric == "loopback"; }
inline bool OnVerbs() { return FabricSettings().fabric == "verbs"; }
inline bool OnLibfabric() { return FabricSettings().fabric == "libfabric"; }
// "onerail", "tworails", …: of loopback devices.
inline bool OnRails() { return FabricSettings().fabric.find("rail") != std::string::npos; }
// Whether a card, or what stands for one, moves the bytes.
inline bool OnCard() { return OnVerbs() || OnLibfabric() || OnRails(); }

}  // namespace rdma_transport::testing
