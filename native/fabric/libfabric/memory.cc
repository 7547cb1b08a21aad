#include "fabric/libfabric/memory.h"

#include <utility>

namespace rdma_transport::fabric::libfabric {

void RegisteredMemory::Remove(uint64_t key) {
  std::shared_ptr<Registration> removed;  // ends after the lock is released
  std::lock_guard<std::mutex> lock(mu_);
  regions_.Remove(key);
  const auto found = registrations_.find(key);
  if (found == registrations_.end()) return;
  removed = std::move(found->second);
  registrations_.erase(found);
}

Status RegisteredMemory::FindLocal(const void* data, uint64_t length, void** descriptor) {
  RemoteSpan span;
  if (!Locate(data, &span) || length > span.length) {
    return Status(Code::kInvalidArgument, "the local end of a one-sided operation is in no region");
  }
  *descriptor = nullptr;
  if (!domain_->traits().local_registration) return OkStatus();
  std::shared_ptr<Registration> registration;
  RegionRecord record;
  RDMA_RETURN_IF_ERROR(Register(span.key, /*fresh=*/false, &record, &registration));
  *descriptor = registration->descriptor();
  return OkStatus();
}

Status RegisteredMemory::Register(uint64_t key, bool fresh, RegionRecord* record,
                                  std::shared_ptr<Registration>* registration) {
  std::lock_guard<std::mutex> lock(mu_);
  char* address = nullptr;
  const bool exists = regions_.With(key, [&](const Region& region) {
    const bool writable = region.access() == Access::kRemoteReadWrite;
    address = region.address();
    *record = {key, region.length(), 0, 0, writable ? uint64_t{1} : 0};
  });
  if (!exists) return Status(Code::kInternal, "there is no region with this key");
  auto& cached = registrations_[key];
  if (fresh || cached == nullptr) {
    const uint64_t access = FI_REMOTE_READ | (record->writable != 0 ? FI_REMOTE_WRITE : 0);
    RDMA_RETURN_IF_ERROR(domain_->Register(address, record->length, access, registration));
    if (!fresh) cached = *registration;
  } else {
    *registration = cached;
  }
  record->base = (*registration)->base();
  record->remote_key = (*registration)->key();
  return OkStatus();
}

}  // namespace rdma_transport::fabric::libfabric
