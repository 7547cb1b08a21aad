// The providers and interfaces of this host by which the fabric can reach peers.
#pragma once

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
