// The regions that peers of this device can access, and their registrations.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// How the card addresses local memory: by `lkey`, at its address plus `shift`.
struct LocalEnd {
  uint32_t lkey = 0;
  bool usable = false;  // false: not registered with this port
  bool far = false;     // other ports are nearer to the memory
  uint64_t shift = 0;
};
// By the index of the port.
using LocalEnds = std::array<LocalEnd, kMaxPorts>;
// Of one region, by the index of the port. Null: not registered with this port.
using Registrations = std::vector<std::shared_ptr<Registration>>;

// Thread-safe. Does not own the regions: call Remove() before a region is destroyed.
class RegisteredMemory {
 public:
  // Memory is registered with all ports. If only some accept it, transfers use those.
  // `adapters` is in the order of their indexes. Those that are not known take no memory yet.
  explicit RegisteredMemory(std::vector<Adapter*> adapters) : adapters_(std::move(adapters)) {}

  // Registers all memory, except that of accelerators, with a port that is known now. It may take
  // long. Returns when `stop` is set.
  void AddPort(Adapter* adapter, const std::atomic<bool>& stop);
  // Updates the registrations of a region, if it still exists.
  void Refresh(uint64_t key, Registrations* registrations) const;

  uint64_t NewKey();
  // Of a region that is not shared with other fabrics, whose keys may be as NewKey()'s.
  uint64_t NewKeyOfImported() { return NewKey() | uint64_t{1} << 63; }
  // Adds a region. Registers it now or on first use; memory used only by peers on this host then
  // stays unpinned.
  Status Add(Region* region, bool now);
  // Registers memory of an accelerator, and adds its region. Large transfers prefer the ports that
  // are nearest to the accelerator.
  Status AddImported(Region* region, const DeviceMemory& memory);
  void Remove(uint64_t key);

  // If `data` lies in a region, sets `span` to the rest of the region from there and returns true.
  bool Locate(const void* data, RemoteSpan* span) const;
  // Returns InvalidArgument if the bytes do not lie in one region.
  Status FindLocal(const void* data, uint64_t length, LocalEnds* ends);
  // Returns what a peer must know of a region, and its registrations. Returns Internal if there is
  // no such region.
  Status Describe(uint64_t key, RegionRecord* record, Registrations* registrations);

 private:
  struct Entry {
    Region* region = nullptr;
    Registrations registrations;  // empty: not yet registered
    bool imported = false;
  };

  Status AddEntry(Entry entry);
  template <typename Expose>  // Status(Adapter*, std::shared_ptr<Registration>*)
  Status RegisterWithAll(Expose expose, Registrations* registrations);
  Status Register(const Region& region, Registrations* registrations);
  Status RegisterLate(uintptr_t start);
  const Entry* FindLocked(uintptr_t address) const;

  const std::vector<Adapter*> adapters_;
  std::mutex register_mu_;        // held during late registration; acquired before mu_
  mutable std::shared_mutex mu_;  // never held while pages are pinned
  std::map<uintptr_t, Entry> by_address_;
  std::map<uint64_t, uintptr_t> addresses_;  // by key
  uint64_t last_key_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
