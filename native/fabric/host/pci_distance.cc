#include "fabric/host/pci_distance.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace rdma_transport::fabric::host {
namespace {

std::string NodeOf(const std::filesystem::path& device) {
  std::ifstream file(device / "numa_node");
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

// The path of a device names all bridges above it: ".../pci0000:3a/0000:3a:00.0/0000:3b:00.0".
PciDistance DistanceBetween(const std::string& first, const std::string& second) {
  std::error_code unknown;
  const std::filesystem::path a = std::filesystem::canonical(first, unknown);
  if (unknown) return PciDistance::kSystem;
  const std::filesystem::path b = std::filesystem::canonical(second, unknown);
  if (unknown) return PciDistance::kSystem;
  bool bridge = false;
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  for (auto part = a.begin(); part != end; ++part) {
    if (bridge) return PciDistance::kSwitch;
    bridge = part->string().rfind("pci", 0) == 0;
  }
  if (bridge) return PciDistance::kHostBridge;
  return NodeOf(a) == NodeOf(b) ? PciDistance::kSocket : PciDistance::kSystem;
}

}  // namespace rdma_transport::fabric::host
