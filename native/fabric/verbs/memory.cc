#include "fabric/verbs/memory.h"

#include <iterator>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

Status Unknown() {
  return Status(Code::kInvalidArgument, "the local end of a one-sided operation is in no region");
}

// Every region may receive what is read from a peer.
int FlagsOf(Access access) {
  const int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  return access == Access::kRemoteReadWrite ? flags | IBV_ACCESS_REMOTE_WRITE : flags;
}

}  // namespace

uint64_t RegisteredMemory::NewKey() {
  std::unique_lock<std::shared_mutex> lock(mu_);
  return ++last_key_;
}

Status RegisteredMemory::Add(Region* region, bool now) {
  std::unique_lock<std::shared_mutex> lock(mu_);
  Entry entry;
  entry.region = region;
  if (now) RDMA_RETURN_IF_ERROR(RegisterLocked(&entry));
  const auto address = reinterpret_cast<uintptr_t>(region->address());
  by_address_[address] = std::move(entry);
  addresses_[region->key()] = address;
  return OkStatus();
}

Status RegisteredMemory::RegisterLocked(Entry* entry) {
  return adapter_->Register(entry->region->address(), entry->region->length(),
                            FlagsOf(entry->region->access()), &entry->registration);
}

void RegisteredMemory::Remove(uint64_t key) {
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = addresses_.find(key);
  if (found == addresses_.end()) return;
  by_address_.erase(found->second);
  addresses_.erase(found);
}

const RegisteredMemory::Entry* RegisteredMemory::FindLocked(uintptr_t address) const {
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return nullptr;
  const auto& [start, entry] = *std::prev(after);
  return address - start < entry.region->length() ? &entry : nullptr;
}

bool RegisteredMemory::Locate(const void* data, RemoteSpan* span) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  std::shared_lock<std::shared_mutex> lock(mu_);
  const Entry* entry = FindLocked(address);
  if (entry == nullptr) return false;
  const uint64_t offset = address - reinterpret_cast<uintptr_t>(entry->region->address());
  *span = {entry->region->key(), offset, entry->region->length() - offset};
  return true;
}

Status RegisteredMemory::LocalKey(const void* data, uint64_t length, uint32_t* lkey) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const Entry* entry = FindLocked(address);
    if (entry == nullptr) return Unknown();
    const uint64_t offset = address - reinterpret_cast<uintptr_t>(entry->region->address());
    if (length > entry->region->length() - offset) return Unknown();
    if (entry->registration != nullptr) {
      *lkey = entry->registration->lkey();
      return OkStatus();
    }
  }
  std::unique_lock<std::shared_mutex> lock(mu_);
  auto* entry = const_cast<Entry*>(FindLocked(address));
  if (entry == nullptr) return Unknown();
  if (entry->registration == nullptr) RDMA_RETURN_IF_ERROR(RegisterLocked(entry));
  *lkey = entry->registration->lkey();
  return OkStatus();
}

Status RegisteredMemory::Describe(uint64_t key, RegionRecord* record) {
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = addresses_.find(key);
  if (found == addresses_.end()) {
    return Status(Code::kInternal, "sharing a region that does not exist");
  }
  Entry& entry = by_address_[found->second];
  if (entry.registration == nullptr) RDMA_RETURN_IF_ERROR(RegisterLocked(&entry));
  record->key = key;
  record->address = found->second;
  record->length = entry.region->length();
  record->rkey = entry.registration->rkey();
  record->writable = entry.region->access() == Access::kRemoteReadWrite ? 1 : 0;
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
