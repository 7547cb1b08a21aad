#include "fabric/host/control_group.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace rdma_transport::fabric::host {
namespace {

constexpr size_t kUnknown = std::numeric_limits<size_t>::max();

// The file names of a cgroup version.
struct Names {
  const char* mount;
  const char* limit;
  const char* high;  // above this, the kernel lets the group sleep, or null
  const char* usage;
  const char* reclaimable;  // a field of memory.stat: inactive file pages
};
constexpr Names kUnified = {"/sys/fs/cgroup", "memory.max", "memory.high", "memory.current",
                            "inactive_file"};
constexpr Names kLegacy = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", nullptr,
                           "memory.usage_in_bytes", "total_inactive_file"};

// Both "max" and a missing file mean that there is no limit.
size_t NumberInFile(const std::string& path) {
  std::ifstream file(path);
  size_t value = 0;
  return file >> value ? value : kUnknown;
}

size_t Reclaimable(const std::string& path, const std::string& field) {
  std::ifstream file(path);
  std::string name;
  size_t value = 0;
  while (file >> name >> value) {
    if (name == field) return value;
  }
  return 0;
}

void Tighten(const std::string& directory, const Names& names, MemoryBounds* bounds) {
  size_t limit = NumberInFile(directory + names.limit);
  if (names.high != nullptr) limit = std::min(limit, NumberInFile(directory + names.high));
  if (limit == kUnknown) return;
  bounds->limit = std::min(bounds->limit, limit);
  const size_t usage = NumberInFile(directory + names.usage);
  if (usage == kUnknown) return;
  const size_t used =
      usage - std::min(usage, Reclaimable(directory + "memory.stat", names.reclaimable));
  bounds->available = std::min(bounds->available, limit - std::min(limit, used));
}

bool HasMemory(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "memory") return true;
  }
  return false;
}

}  // namespace

// A group's limit also applies to its descendants. In a container the path may be the host's, and
// only its last part, or none of it, is visible.
MemoryBounds ControlGroupMemory(const std::string& root) {
  MemoryBounds bounds = {kUnknown, kUnknown};
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // number:controllers:path
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && !HasMemory(controllers)) continue;
    const Names& names = controllers.empty() ? kUnified : kLegacy;
    std::string path = line.substr(second + 1);
    while (true) {
      while (!path.empty() && path.back() == '/') path.pop_back();
      Tighten(root + names.mount + path + "/", names, &bounds);
      if (path.empty()) break;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return bounds;
}

}  // namespace rdma_transport::fabric::host
