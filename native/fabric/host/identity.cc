#include "fabric/host/identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace rdma_transport::fabric::host {
namespace {

std::string Compose() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network = {};
  if (stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return boot + "/" + std::to_string(network.st_ino) + "/" + std::to_string(geteuid());
}

// The kernel, the network namespace and the user of an identity; empty if it has no such parts.
struct IdentityParts {
  explicit IdentityParts(std::string_view identity) {
    const size_t second = identity.rfind('/');
    const size_t first = second == 0 ? second : identity.rfind('/', second - 1);
    if (first == std::string_view::npos || second == std::string_view::npos) return;
    kernel = identity.substr(0, first);
    network = identity.substr(first + 1, second - first - 1);
    user = identity.substr(second + 1);
  }
  std::string_view kernel, network, user;
};

bool IsUser(std::string_view text) {
  return !text.empty() && text.size() <= 10 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Status CanShareMemory(std::string_view identity, std::string_view own) {
  if (identity == own) return OkStatus();
  const IdentityParts peer(identity), self(own);
  if (peer.kernel.empty() || peer.kernel != self.kernel) {
    return Status(Code::kUnavailable, "it is on another host");
  }
  if (peer.network != self.network) {
    return Status(Code::kPermissionDenied, "it is in another network namespace of this host");
  }
  return Status(
      Code::kPermissionDenied,
      "it runs as " +
          (IsUser(peer.user) ? "user " + std::string(peer.user) : std::string("another user")) +
          ", this task as " + std::string(self.user) + "; shared memory is for one user");
}

const std::string& HostIdentity() {
  static const auto* identity = new std::string(Compose());
  return *identity;
}

}  // namespace rdma_transport::fabric::host
