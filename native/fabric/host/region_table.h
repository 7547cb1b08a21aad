// The regions of a device, by key and by address.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include "fabric/fabric.h"

namespace rdma_transport::fabric::host {

// Thread-safe. Holds no region alive.
class RegionTable {
 public:
  uint64_t NewKey();
  void Add(Region* region);
  void Remove(uint64_t key);

  // Where `data` lies; `span->length` is what is left of the region from there.
  bool Locate(const void* data, RemoteSpan* span) const;
  // Calls `use(region)` while the region cannot end; false: there is none of that key.
  template <typename Use>
  bool With(uint64_t key, Use use) const {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return false;
    use(*found->second);
    return true;
  }

 private:
  mutable std::shared_mutex mu_;
  std::map<uint64_t, Region*> by_key_;
  std::map<uintptr_t, Region*> by_address_;
  uint64_t last_key_ = 0;
};

}  // namespace rdma_transport::fabric::host
