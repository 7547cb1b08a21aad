// The regions that peers of this device can access, and their registrations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "fabric/fabric.h"
#include "fabric/host/region_table.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// How the card addresses local memory: by `lkey`, at its address plus `shift`.
struct LocalEnd {
  uint32_t lkey = 0;
  uint64_t shift = 0;
};

// Thread-safe. Does not own the regions: call Remove() before a region is destroyed.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(Adapter* adapter) : adapter_(adapter) {}

  // Of a region that other devices of verbs may adopt: they have no other one with this key.
  static uint64_t NewKey();
  // Of a region that is not shared with other devices: its key is one that these do not have.
  static uint64_t NewKeyOfImported();
  // Adds a region. Registers it now or on first use; memory used only by peers on this host then
  // stays unpinned.
  Status Add(Region* region, bool now);
  // Registers memory of an accelerator, and adds its region.
  Status AddImported(Region* region, const DeviceMemory& memory);
  void Remove(uint64_t key);

  // If `data` lies in a region, sets `span` to the rest of the region from there and returns true.
  bool Locate(const void* data, RemoteSpan* span) const { return regions_.Locate(data, span); }
  // Returns InvalidArgument if the bytes do not lie in one region.
  Status FindLocal(const void* data, uint64_t length, LocalEnd* end);
  // Returns what a peer must know of a region, and its registration. Returns Internal if there is
  // no such region.
  Status Describe(uint64_t key, RegionRecord* record, std::shared_ptr<Registration>* registration);

 private:
  // Finds the registration of a region, or registers it.
  Status Find(uint64_t key, std::shared_ptr<Registration>* registration);

  Adapter* const adapter_;
  host::RegionTable regions_;
  std::mutex register_mu_;  // held during registration, so that a region does not end meanwhile
  std::shared_mutex mu_;    // never held while pages are pinned; acquired after register_mu_
  std::map<uint64_t, std::shared_ptr<Registration>> registrations_;  // by key
};

}  // namespace rdma_transport::fabric::verbs
