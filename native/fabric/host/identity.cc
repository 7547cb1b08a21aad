#include "fabric/host/identity.h"

#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace

const std::string& HostIdentity() {
  static const auto* identity = new std::string(Compose());
  return *identity;
}

}  // namespace rdma_transport::fabric::host
