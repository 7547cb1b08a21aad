// Finds the regions of a device by key and by address.
#pragma once

#include <cstdint>
#include <map>
#include <shared_mutex>

#include "fabric/fabric.h"

namespace rdma_transport::fabric::host {

// Thread-safe. Does not own the regions: call Remove() before a region is destroyed.
class RegionTable {
 public:
  uint64_t NewKey();
  void Add(Region* region);
  void Remove(uint64_t key);

  // If `data` lies in a region, sets `span` to the rest of the region from there and returns true.
  bool Locate(const void* data, RemoteSpan* span) const;
  // Calls `use(region)` while holding a lock that keeps the region alive. Returns false if there is
  // no region with this key.
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
