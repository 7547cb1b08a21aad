#include "fabric/verbs/memory.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/log.h"
#include "fabric/host/pci_distance.h"

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

// Distinguishes the ports that are nearest to an accelerator from the others.
void MarkFar(const std::string& accelerator, Registrations* registrations) {
  std::vector<std::pair<host::PciDistance, Registration*>> found;
  for (const auto& one : *registrations) {
    if (one == nullptr) continue;
    found.emplace_back(host::DistanceBetween(one->adapter()->port().folder, accelerator),
                       one.get());
  }
  const auto nearest = std::min_element(found.begin(), found.end());
  for (const auto& [distance, one] : found) one->set_far(distance > nearest->first);
}

}  // namespace

uint64_t RegisteredMemory::NewKey() {
  std::unique_lock<std::shared_mutex> lock(mu_);
  return ++last_key_;
}

Status RegisteredMemory::Add(Region* region, bool now) {
  Entry entry;
  entry.region = region;
  if (now) RDMA_RETURN_IF_ERROR(Register(*region, &entry.registrations));
  return AddEntry(std::move(entry));
}

Status RegisteredMemory::AddImported(Region* region, const DeviceMemory& memory) {
  Entry entry;
  entry.region = region;
  entry.imported = true;
  const int flags = FlagsOf(region->access());
  RDMA_RETURN_IF_ERROR(RegisterWithAll(
      [&](Adapter* adapter, std::shared_ptr<Registration>* registration) {
        return adapter->Expose(memory, flags, registration);
      },
      &entry.registrations));
  MarkFar(memory.device, &entry.registrations);
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

// Returns the error of the first port if none accepts the memory.
template <typename Expose>
Status RegisteredMemory::RegisterWithAll(Expose expose, Registrations* registrations) {
  Status first;
  bool any = false;
  for (Adapter* adapter : adapters_) {
    std::shared_ptr<Registration> registration;
    if (!adapter->port().known) {
      registrations->push_back(nullptr);
      continue;
    }
    const Status status = expose(adapter, &registration);
    if (!status.ok() && first.ok()) first = status;
    any |= status.ok();
    registrations->push_back(std::move(registration));
  }
  if (first.ok()) return first;
  if (!any) {
    registrations->clear();
    return first;
  }
  Log(LogLevel::kWarning, "verbs: memory is not used through one of the ports: " + first.message());
  return OkStatus();
}

Status RegisteredMemory::Register(const Region& region, Registrations* registrations) {
  return RegisterWithAll(
      [&](Adapter* adapter, std::shared_ptr<Registration>* registration) {
        return adapter->Expose(region.address(), region.length(), FlagsOf(region.access()),
                               registration);
      },
      registrations);
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
    if (!found->second.registrations.empty()) return OkStatus();
    region = found->second.region;
  }
  Registrations registrations;
  RDMA_RETURN_IF_ERROR(Register(*region, &registrations));
  std::unique_lock<std::shared_mutex> lock(mu_);
  by_address_[start].registrations = std::move(registrations);
  return OkStatus();
}

void RegisteredMemory::AddPort(Adapter* adapter, const std::atomic<bool>& stop) {
  for (uint64_t key = 0; !stop.load();) {
    std::lock_guard<std::mutex> registering(register_mu_);  // Remove() waits for it
    const Region* region = nullptr;
    {
      std::shared_lock<std::shared_mutex> lock(mu_);
      const auto next = addresses_.upper_bound(key);
      if (next == addresses_.end()) return;
      key = next->first;
      const Entry& entry = by_address_.at(next->second);
      const size_t index = adapter->index();
      const bool missing =
          !entry.imported && !entry.registrations.empty() && entry.registrations[index] == nullptr;
      if (!missing) continue;
      region = entry.region;
    }
    std::shared_ptr<Registration> registration;
    const Status status = adapter->Expose(region->address(), region->length(),
                                          FlagsOf(region->access()), &registration);
    if (!status.ok()) {
      Log(LogLevel::kWarning,
          "verbs: memory is not used through " + adapter->Name() + ": " + status.message());
      continue;
    }
    std::unique_lock<std::shared_mutex> lock(mu_);
    by_address_.at(addresses_.at(key)).registrations[adapter->index()] = std::move(registration);
  }
}

void RegisteredMemory::Refresh(uint64_t key, Registrations* registrations) const {
  std::shared_lock<std::shared_mutex> lock(mu_);
  const auto found = addresses_.find(key);
  if (found != addresses_.end()) *registrations = by_address_.at(found->second).registrations;
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

Status RegisteredMemory::FindLocal(const void* data, uint64_t length, LocalEnds* ends) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (bool again = false;; again = true) {
    uintptr_t start = 0;
    {
      std::shared_lock<std::shared_mutex> lock(mu_);
      const Entry* entry = FindLocked(address);
      if (entry == nullptr) return Unknown();
      start = reinterpret_cast<uintptr_t>(entry->region->address());
      if (length > entry->region->length() - (address - start)) return Unknown();
      for (size_t i = 0; i < entry->registrations.size(); ++i) {
        const Registration* registration = entry->registrations[i].get();
        if (registration == nullptr) continue;
        (*ends)[i] = {registration->lkey(), true, registration->far(), registration->shift()};
      }
      if (!entry->registrations.empty()) return OkStatus();
    }
    if (again) return Unknown();  // the region was replaced by another one meanwhile
    RDMA_RETURN_IF_ERROR(RegisterLate(start));
  }
}

Status RegisteredMemory::Describe(uint64_t key, RegionRecord* record,
                                  Registrations* registrations) {
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
  if (entry.registrations.empty()) return none;
  record->key = key;
  record->length = entry.region->length();
  record->writable = entry.region->access() == Access::kRemoteReadWrite ? 1 : 0;
  *registrations = entry.registrations;
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
