#include "fabric/host/region_table.h"

#include <iterator>
#include <mutex>

namespace rdma_transport::fabric::host {

uint64_t RegionTable::NewKey() {
  std::unique_lock<std::shared_mutex> lock(mu_);
  return ++last_key_;
}

void RegionTable::Add(Region* region) {
  std::unique_lock<std::shared_mutex> lock(mu_);
  by_key_[region->key()] = region;
  by_address_[reinterpret_cast<uintptr_t>(region->address())] = region;
}

void RegionTable::Remove(uint64_t key) {
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  by_address_.erase(reinterpret_cast<uintptr_t>(found->second->address()));
  by_key_.erase(found);
}

bool RegionTable::Locate(const void* data, RemoteSpan* span) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::shared_lock<std::shared_mutex> lock(mu_);
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return false;
  const Region* region = std::prev(after)->second;
  const uint64_t offset = address - reinterpret_cast<uintptr_t>(region->address());
  if (offset >= region->length()) return false;
  *span = {region->key(), offset, region->length() - offset};
  return true;
}

}  // namespace rdma_transport::fabric::host
