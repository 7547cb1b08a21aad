// Memory regions, with the modes that the real provider does not ask for.
//
// A key that the double chooses is requested of the real provider, which takes any, so that it
// serves peers in other processes, too. Virtual addresses are the real provider's own mode.

#include <sys/mman.h>
#include <unistd.h>

#include "objects.h"

namespace faulty_libfabric {
namespace {

bool IsMapped(const iovec& memory) {
  if (memory.iov_len == 0) return true;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory.iov_base) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(memory.iov_base) + memory.iov_len;
  std::vector<unsigned char> resident((end - begin + page - 1) / page);
  return mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) == 0;
}

// Makes a region known to the real provider, with a key.
int RegisterReal(Region& region) {
  Domain& domain = *region.domain;
  const bool chooses = (domain.mr_mode & FI_MR_PROV_KEY) != 0;
  const uint64_t bytes = Current()->mr_key_size;
  int error = -FI_ENOKEY;
  for (int attempt = 0; error == -FI_ENOKEY && attempt < (chooses ? 1000 : 1); ++attempt) {
    const uint64_t key = chooses ? RandomKey(bytes) : region.requested_key;
    if (bytes < 8 && (key >> (8 * bytes)) != 0) return -FI_EKEYREJECTED;
    error = fi_mr_reg(domain.real, region.memory.iov_base, region.memory.iov_len, region.access,
                      region.offset, key, region.flags & ~FI_RMA_EVENT, &region.real, nullptr);
  }
  if (error == 0) region.key = fi_mr_key(region.real);
  return error;
}

int Close(fid* client) {
  auto* region = As<Region>(client);
  {
    Domain& domain = *region->domain;
    const std::lock_guard<std::mutex> lock(domain.mutex);
    if (region->real != nullptr) {
      if (const int error = fi_close(&region->real->fid); error != 0) return error;
    }
    if (region->endpoint != nullptr) --region->endpoint->regions;
    domain.regions.erase(region);
    --domain.users;
  }
  Unregister(region->memory.iov_len);
  delete region;
  return 0;
}

int Bind(fid* client, fid* bound, uint64_t flags) {
  auto* region = As<Region>(client);
  const std::lock_guard<std::mutex> lock(region->domain->mutex);
  if ((region->domain->mr_mode & FI_MR_ENDPOINT) == 0) return -FI_ENOSYS;
  if (bound->fclass != FI_CLASS_EP || flags != 0) return -FI_EINVAL;
  if (region->endpoint != nullptr) return -FI_EOPBADSTATE;
  region->endpoint = As<Endpoint>(bound);
  ++region->endpoint->regions;
  return 0;
}

int Control(fid* client, int command, void*) {
  auto* region = As<Region>(client);
  const std::lock_guard<std::mutex> lock(region->domain->mutex);
  if (command != FI_ENABLE || (region->domain->mr_mode & FI_MR_ENDPOINT) == 0) return -FI_ENOSYS;
  if (region->endpoint == nullptr || !region->endpoint->enabled || region->real != nullptr) {
    return -FI_EOPBADSTATE;
  }
  return RegisterReal(*region);
}

fi_ops* FidTable() {
  static fi_ops table = FidOperations(Close, Bind, Control);
  return &table;
}

int RegisterBuffer(fid* client, const void* buffer, size_t length, uint64_t access, uint64_t offset,
                   uint64_t key, uint64_t flags, fid_mr** opened, void* context) {
  auto* domain = As<Domain>(client);
  const iovec memory = {const_cast<void*>(buffer), length};
  if ((domain->mr_mode & FI_MR_ALLOCATED) != 0 && !IsMapped(memory)) return -FI_EFAULT;
  if (const int error = Register(*Current(), length); error != 0) return error;
  auto region = std::make_unique<Region>();
  region->domain = domain;
  region->memory = memory;
  region->access = access;
  region->offset = offset;
  region->requested_key = key;
  region->flags = flags;
  region->key = FI_KEY_NOTAVAIL;
  region->mem_desc = region.get();
  region->fid.fclass = FI_CLASS_MR;
  region->fid.context = context;
  region->fid.ops = FidTable();
  const std::lock_guard<std::mutex> lock(domain->mutex);
  if ((domain->mr_mode & FI_MR_ENDPOINT) == 0) {
    if (const int error = RegisterReal(*region); error != 0) {
      Unregister(length);
      return error;
    }
  }
  domain->regions.insert(region.get());
  ++domain->users;
  *opened = region.release();
  return 0;
}

constexpr uint64_t kAccess[kKinds] = {FI_SEND, FI_WRITE, FI_READ, FI_RECV};

}  // namespace

fi_ops_mr* RegionOperations() {
  static fi_ops_mr table = {sizeof(fi_ops_mr), RegisterBuffer, nullptr, nullptr};
  return &table;
}

bool HasDescriptor(const Operation& operation) {
  const iovec& buffer = operation.buffer;
  if (buffer.iov_len == 0) return true;
  auto* region = static_cast<Region*>(operation.descriptor);
  if (operation.endpoint->domain->regions.count(region) == 0 || region->real == nullptr) {
    return false;
  }
  const char* begin = static_cast<const char*>(region->memory.iov_base);
  const char* wanted = static_cast<const char*>(buffer.iov_base);
  return wanted >= begin && wanted + buffer.iov_len <= begin + region->memory.iov_len &&
         (region->access & kAccess[static_cast<int>(operation.kind)]) != 0;
}

}  // namespace faulty_libfabric
