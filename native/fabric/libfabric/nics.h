// The cards of a host that has several of one provider.
#pragma once

#include <rdma/fabric.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace rdma_transport::fabric::libfabric {

// Most cards that a task uses.
constexpr size_t kMaxNics = 8;

// A card, as far as the choice among several goes.
struct Nic {
  bool down = false;   // its link
  bool far = false;    // at processors on which this thread may not run
  uint64_t speed = 0;  // in bits per second; 0: not known
  std::string folder;  // in sysfs; empty: not known
};

// Reads what the provider and sysfs, where the kernel lists PCI devices in the folder
// `pci_devices`, say of the card of an offer; nothing if it has none.
Nic NicOf(const fi_info& info, const std::string& pci_devices);

// Returns a number that differs between the tasks of a host: the one that the launcher gives them,
// or that of the process. `environment` is as `environ`.
uint32_t LocalTask(const char* const* environment);

}  // namespace rdma_transport::fabric::libfabric
