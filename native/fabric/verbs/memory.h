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

// How the card knows local memory: by `lkey`, and `shift` from its address here.
struct LocalEnd {
  uint32_t lkey = 0;
  uint64_t shift = 0;
};

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
  Status FindLocal(const void* data, uint64_t length, LocalEnd* end);
  // What a peer must know of a region, and the registration that windows are bound over.
  Status Describe(uint64_t key, RegionRecord* record, std::shared_ptr<Registration>* registration);

 private:
  struct Entry {
    Region* region = nullptr;
    std::shared_ptr<Registration> registration;
  };

  Status Register(const Region& region, std::shared_ptr<Registration>* registration);
  Status RegisterLate(uintptr_t start);
  const Entry* FindLocked(uintptr_t address) const;

  Adapter* const adapter_;
  std::mutex register_mu_;        // who registers late; before mu_
  mutable std::shared_mutex mu_;  // never held while pages are pinned
  std::map<uintptr_t, Entry> by_address_;
  std::map<uint64_t, uintptr_t> addresses_;  // by key
  uint64_t last_key_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
