// The providers and interfaces of this host by which the fabric can reach peers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "fabric/libfabric/library.h"

namespace rdma_transport::fabric::libfabric {

struct Provider {
  std::vector<InfoPtr> nics;  // or interfaces: the preferred one first; at least one
  // "tcp" for both names that releases of libfabric have for it, otherwise the provider's own.
  std::string name;
};

// A provider on an interface, as the library offers it.
struct Offer {
  std::string provider;   // as in Provider
  std::string full_name;  // the library's: "net", "tcp;ofi_rxm"
  std::string interface;  // or what a card's provider has in its place
  std::string address;    // without a port; empty if it is not one of IP
  bool card = false;
  bool chosen = false;
  std::string reason;  // why it is chosen, or why it is not
};

constexpr char kPciDevices[] = "/sys/bus/pci/devices";
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

// Finds the providers that the settings allow, best first: one over TCP with its best interface,
// and one other at most, with its cards of one speed that are near this thread's processors, if any
// is; tasks of one host begin with different ones. Without another interface, TCP uses the loopback
// interface only if it is named, or if this fabric alone is: other hosts do not reach it. Returns
// NotFound if the library offers none that is used by default and not left out; FailedPrecondition,
// with what there is, if the settings name others; InvalidArgument if a setting is malformed.
// `offers`, unless it is null, receives what there is. `pci_devices` is as for NicOf(). May take
// some milliseconds.
Status FindProviders(const Library& library, const Settings& settings,
                     std::vector<Provider>* providers, std::vector<Offer>* offers = nullptr,
                     const std::string& pci_devices = kPciDevices);

}  // namespace rdma_transport::fabric::libfabric
