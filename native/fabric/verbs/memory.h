// The regions that peers of this device can reach, and their registrations.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>

#include "fabric/fabric.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-safe. Holds no region alive.
class RegisteredMemory {
 public:
  explicit RegisteredMemory(Adapter* adapter) : adapter_(adapter) {}

  uint64_t NewKey();
  // Registers the region now, or when it is first needed: memory that only peers on this host use
  // then stays unpinned.
  Status Add(Region* region, bool now);
  void Remove(uint64_t key);

  bool Locate(const void* data, RemoteSpan* span) const;
  Status LocalKey(const void* data, uint64_t length, uint32_t* lkey);
  // What a peer must know of a region.
  Status Describe(uint64_t key, RegionRecord* record);

 private:
  struct Entry {
    Region* region = nullptr;
    std::unique_ptr<Registration> registration;
  };

  Status RegisterLocked(Entry* entry);
  const Entry* FindLocked(uintptr_t address) const;

  Adapter* const adapter_;
  mutable std::shared_mutex mu_;
  std::map<uintptr_t, Entry> by_address_;
  std::map<uint64_t, uintptr_t> addresses_;  // by key
  uint64_t last_key_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
