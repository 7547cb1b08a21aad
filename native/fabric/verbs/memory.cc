#include "fabric/verbs/memory.h"

#include <atomic>
#include <iterator>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

Status Unknown() {
  return Status(Code::kInvalidArgument, "the local end of a one-sided operation is in no region");
}

// Every region may be the target of a read from a peer.
int FlagsOf(Access access) {
  const int flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
  return access == Access::kRemoteReadWrite ? flags | IBV_ACCESS_REMOTE_WRITE : flags;
}

}  // namespace

uint64_t RegisteredMemory::NewKey() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t RegisteredMemory::NewKeyOfImported() {
  static std::atomic<uint64_t> last{0};
  return ++last | uint64_t{1} << 63;
}

Status RegisteredMemory::Add(Region* region, bool now) {
  Entry entry;
  entry.region = region;
  if (now) RDMA_RETURN_IF_ERROR(Register(*region, &entry.registration));
  return AddEntry(std::move(entry));
}

Status RegisteredMemory::AddImported(Region* region, const DeviceMemory& memory) {
  Entry entry;
  entry.region = region;
  RDMA_RETURN_IF_ERROR(adapter_->Expose(memory, FlagsOf(region->access()), &entry.registration));
  return AddEntry(std::move(entry));
}

Status RegisteredMemory::AddEntry(Entry entry) {
  const auto address = reinterpret_cast<uintptr_t>(entry.region->address());
  std::unique_lock<std::shared_mutex> lock(mu_);
  if (by_address_.count(address) != 0) {
    return Status(Code::kInternal, "another region is registered at this address");
  }
  addresses_[entry.region->key()] = address;
  by_address_[address] = std::move(entry);
  return OkStatus();
}

Status RegisteredMemory::Register(const Region& region,
                                  std::shared_ptr<Registration>* registration) {
  return adapter_->Expose(region.address(), region.length(), FlagsOf(region.access()),
                          registration);
}

// Pins the pages of the region at `start` without the lock that other operations need. The region
// stays valid, because Remove() waits for `register_mu_`.
Status RegisteredMemory::RegisterLate(uintptr_t start) {
  std::lock_guard<std::mutex> registering(register_mu_);
  Region* region = nullptr;
  {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const auto found = by_address_.find(start);
    if (found == by_address_.end()) return Unknown();
    if (found->second.registration != nullptr) return OkStatus();
    region = found->second.region;
  }
  std::shared_ptr<Registration> registration;
  RDMA_RETURN_IF_ERROR(Register(*region, &registration));
  std::unique_lock<std::shared_mutex> lock(mu_);
  by_address_[start].registration = std::move(registration);
  return OkStatus();
}

void RegisteredMemory::Remove(uint64_t key) {
  Entry removed;  // unpinned after the locks are released
  std::lock_guard<std::mutex> registering(register_mu_);
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = addresses_.find(key);
  if (found == addresses_.end()) return;
  removed = std::move(by_address_[found->second]);
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

Status RegisteredMemory::FindLocal(const void* data, uint64_t length, LocalEnd* end) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (bool again = false;; again = true) {
    uintptr_t start = 0;
    {
      std::shared_lock<std::shared_mutex> lock(mu_);
      const Entry* entry = FindLocked(address);
      if (entry == nullptr) return Unknown();
      start = reinterpret_cast<uintptr_t>(entry->region->address());
      if (length > entry->region->length() - (address - start)) return Unknown();
      if (const Registration* registration = entry->registration.get()) {
        *end = {registration->lkey(), registration->shift()};
        return OkStatus();
      }
    }
    if (again) return Unknown();  // the region was replaced by another one meanwhile
    RDMA_RETURN_IF_ERROR(RegisterLate(start));
  }
}

Status RegisteredMemory::Describe(uint64_t key, RegionRecord* record,
                                  std::shared_ptr<Registration>* registration) {
  const Status none(Code::kInternal, "sharing a region that does not exist");
  uintptr_t start = 0;
  {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const auto found = addresses_.find(key);
    if (found == addresses_.end()) return none;
    start = found->second;
  }
  RDMA_RETURN_IF_ERROR(RegisterLate(start));
  std::shared_lock<std::shared_mutex> lock(mu_);
  const auto found = addresses_.find(key);
  if (found == addresses_.end()) return none;
  const Entry& entry = by_address_.at(found->second);
  if (entry.registration == nullptr) return none;
  record->key = key;
  record->length = entry.region->length();
  record->writable = entry.region->access() == Access::kRemoteReadWrite ? 1 : 0;
  record->address = entry.registration->iova();
  record->rkey = entry.registration->rkey();
  *registration = entry.registration;
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
