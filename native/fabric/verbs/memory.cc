#include "fabric/verbs/memory.h"

#include <atomic>
#include <utility>

namespace rdma_transport::fabric::verbs {
namespace {

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
  regions_.Add(region);
  std::shared_ptr<Registration> unused;
  const Status registered = now ? Find(region->key(), &unused) : OkStatus();
  if (!registered.ok()) regions_.Remove(region->key());
  return registered;
}

Status RegisteredMemory::AddImported(Region* region, const DeviceMemory& memory) {
  std::shared_ptr<Registration> registration;
  RDMA_RETURN_IF_ERROR(adapter_->Expose(memory, FlagsOf(region->access()), &registration));
  regions_.Add(region);
  std::unique_lock<std::shared_mutex> lock(mu_);
  registrations_[region->key()] = std::move(registration);
  return OkStatus();
}

void RegisteredMemory::Remove(uint64_t key) {
  std::shared_ptr<Registration> removed;  // unpinned after the locks are released
  std::lock_guard<std::mutex> registering(register_mu_);
  regions_.Remove(key);
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = registrations_.find(key);
  if (found == registrations_.end()) return;
  removed = std::move(found->second);
  registrations_.erase(found);
}

Status RegisteredMemory::Find(uint64_t key, std::shared_ptr<Registration>* registration) {
  const auto known = [&] {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const auto found = registrations_.find(key);
    if (found != registrations_.end()) *registration = found->second;
    return found != registrations_.end();
  };
  if (known()) return OkStatus();
  std::lock_guard<std::mutex> registering(register_mu_);
  if (known()) return OkStatus();
  char* address = nullptr;
  size_t length = 0;
  int flags = 0;
  const bool exists = regions_.With(key, [&](const Region& region) {
    address = region.address();
    length = region.length();
    flags = FlagsOf(region.access());
  });
  if (!exists) return Status(Code::kInternal, "there is no region with this key");
  RDMA_RETURN_IF_ERROR(adapter_->Expose(address, length, flags, registration));
  std::unique_lock<std::shared_mutex> lock(mu_);
  registrations_[key] = *registration;
  return OkStatus();
}

Status RegisteredMemory::FindLocal(const void* data, uint64_t length, LocalEnd* end) {
  RemoteSpan span;
  if (!Locate(data, &span) || length > span.length) {
    return Status(Code::kInvalidArgument, "the local end of a one-sided operation is in no region");
  }
  std::shared_ptr<Registration> registration;
  RDMA_RETURN_IF_ERROR(Find(span.key, &registration));
  *end = {registration->lkey(), registration->shift()};
  return OkStatus();
}

Status RegisteredMemory::Describe(uint64_t key, RegionRecord* record,
                                  std::shared_ptr<Registration>* registration) {
  RDMA_RETURN_IF_ERROR(Find(key, registration));
  const bool exists = regions_.With(key, [&](const Region& region) {
    record->length = region.length();
    record->writable = region.access() == Access::kRemoteReadWrite ? 1 : 0;
  });
  if (!exists) return Status(Code::kInternal, "there is no region with this key");
  record->key = key;
  record->address = (*registration)->iova();
  record->rkey = (*registration)->rkey();
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
