// How far two PCI devices are apart, by their folders in sysfs.
#pragma once

#include <string>

namespace rdma_transport::fabric::host {

// Nearest first. In the words of NCCL: PIX and PXB, PHB, NODE, SYS. `rdma-transport doctor` applies
// the same rule in Python (gpu_direct.py), because it runs where nothing is built.
enum class PciDistance {
  kSwitch,      // below one switch, so data does not pass the processor
  kHostBridge,  // at one host bridge of a processor
  kSocket,      // at one processor
  kSystem,      // at different processors, or not known
};

// `first` and `second` are folders of devices, or links to them.
PciDistance DistanceBetween(const std::string& first, const std::string& second);

}  // namespace rdma_transport::fabric::host
