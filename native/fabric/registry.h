// The registry of fabrics: the one place outside of a fabric's folder that names it. Settings,
// commands and Python take the names from here.
#pragma once

#include <memory>
#include <vector>

#include "base/settings.h"
#include "fabric/combined.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// What the rest of the program knows about a fabric before it is opened. The texts are literals.
struct Registration {
  // Lower-case letters. A value of RDMA_TRANSPORT_FABRIC, the name in channel addresses and in
  // reports, and what Channel::fabric() returns.
  const char* name;
  // What it reaches, and how: a few words for users.
  const char* description;
  // Opens the fabric, and adds its devices in order of preference; most fabrics have one. Returns
  // NotFound or Unimplemented if this host does not have what it needs, for example no card; any
  // other error is logged as a fault of the host.
  Status (*create)(const Settings& settings, std::vector<Member>* members);
};

// What the `create` of a fabric with one device calls: adds the device that `open` opens.
Status AddDevice(const char* name, Status (*open)(const Settings&, std::unique_ptr<Device>*),
                 const Settings& settings, std::vector<Member>* members);

// Returns all fabrics in order of preference. Thread-safe.
const std::vector<Registration>& Fabrics();

// Adds a fabric behind all others. Not thread-safe: call it before settings are read, for example
// from the initializer of a global. Fabrics of this library are in the table in registry.cc
// instead.
void RegisterFabric(const Registration& fabric);

// Opens the fabrics that the settings request. A fabric requested by name must be available; `auto`
// opens all available fabrics. Returns FailedPrecondition if `settings` select gRPC,
// InvalidArgument if there is no fabric of that name, and otherwise the error of the fabric
// requested, or of the most preferred one. Thread-safe.
Status OpenDevice(const Settings& settings, std::unique_ptr<Device>* device);

}  // namespace rdma_transport::fabric
