// The cards of a host that has several of one provider.
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "fabric/host/cpu_list.h"
#include "fabric/libfabric/providers.h"

namespace rdma_transport::fabric::libfabric {
namespace {

// Of Slurm, torchrun and rdma-transport run, Open MPI, and MPICH with its relatives.
constexpr std::string_view kLocalTasks[] = {
    "SLURM_LOCALID=", "LOCAL_RANK=", "OMPI_COMM_WORLD_LOCAL_RANK=", "MPI_LOCALRANKID="};

std::string PciName(const fi_pci_attr& pci) {
  char name[32];
  std::snprintf(name, sizeof(name), "%04x:%02x:%02x.%x", pci.domain_id, pci.bus_id, pci.device_id,
                pci.function_id);
  return name;
}

}  // namespace

Nic NicOf(const fi_info& info, const std::string& pci_devices) {
  Nic nic;
  if (info.nic == nullptr) return nic;
  if (const fi_link_attr* link = info.nic->link_attr; link != nullptr) {
    nic.down = link->state == FI_LINK_DOWN;
    nic.speed = link->speed;
  }
  const fi_bus_attr* bus = info.nic->bus_attr;
  if (bus != nullptr && bus->bus_type == FI_BUS_PCI) {
    nic.folder = pci_devices + "/" + PciName(bus->attr.pci);
    nic.far = !host::MayRunNear(nic.folder);
  }
  return nic;
}

uint32_t LocalTask(const char* const* environment) {
  for (const std::string_view name : kLocalTasks) {
    for (const char* const* at = environment; at != nullptr && *at != nullptr; ++at) {
      const std::string_view variable = *at;
      if (variable.substr(0, name.size()) != name) continue;
      uint32_t number = 0;
      const char* end = variable.data() + variable.size();
      const auto [rest, error] = std::from_chars(variable.data() + name.size(), end, number);
      if (error == std::errc() && rest == end) return number;
    }
  }
  return static_cast<uint32_t>(getpid());
}

}  // namespace rdma_transport::fabric::libfabric
