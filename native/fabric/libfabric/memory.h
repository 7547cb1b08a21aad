// The regions that peers of this device can access, and their registrations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "fabric/fabric.h"
#include "fabric/host/region_table.h"
#include "fabric/libfabric/domain.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// Thread-safe. Does not own the regions: call Remove() before a region is destroyed.
class RegisteredMemory {
 public:
  // With `per_peer`, each peer gets a registration of its own, which ends with its channel.
  RegisteredMemory(Domain* domain, bool per_peer) : domain_(domain), per_peer_(per_peer) {}

  uint64_t NewKey() { return regions_.NewKey(); }
  void Add(Region* region) { regions_.Add(region); }
  void Remove(uint64_t key);
  bool Locate(const void* data, RemoteSpan* span) const { return regions_.Locate(data, span); }

  // Checks that the bytes lie in one region and sets the descriptor by which the provider uses
  // them, registering the region if it must. Returns InvalidArgument, or the error of the provider.
  Status FindLocal(const void* data, uint64_t length, void** descriptor);
  // Registers a region for a peer. Returns Internal if there is no such region.
  Status Share(uint64_t key, RegionRecord* record, std::shared_ptr<Registration>* registration) {
    return Register(key, per_peer_, record, registration);
  }

 private:
  // `fresh`: a registration of its own.
  Status Register(uint64_t key, bool fresh, RegionRecord* record,
                  std::shared_ptr<Registration>* registration);

  Domain* const domain_;
  const bool per_peer_;
  host::RegionTable regions_;
  std::mutex mu_;  // held during registration, so that a region does not end meanwhile
  std::map<uint64_t, std::shared_ptr<Registration>> registrations_;  // by key; for all peers
};

}  // namespace rdma_transport::fabric::libfabric
