// Address vectors only forward.

#include <algorithm>

#include "objects.h"

namespace faulty_libfabric {
namespace {

int Close(fid* client) {
  auto* vector = As<AddressVector>(client);
  {
    const std::lock_guard<std::mutex> lock(vector->domain->mutex);
    if (vector->users > 0) return -FI_EBUSY;
    if (const int error = fi_close(&vector->real->fid); error != 0) return error;
    --vector->domain->users;
  }
  delete vector;
  Count(&FaultyLibfabricCounters::address_vectors, -1);
  return 0;
}

int Insert(fid_av* client, const void* address, size_t count, fi_addr_t* inserted, uint64_t flags,
           void* context) {
  auto* vector = As<AddressVector>(client);
  const std::lock_guard<std::mutex> lock(vector->domain->mutex);
  return fi_av_insert(vector->real, address, count, inserted, flags, context);
}

int Remove(fid_av* client, fi_addr_t* addresses, size_t count, uint64_t flags) {
  auto* vector = As<AddressVector>(client);
  const std::lock_guard<std::mutex> lock(vector->domain->mutex);
  // What completed early is over for its client, who may thus remove the peer.
  TransmitAll(*vector->domain, [=](const Operation& operation) {
    return operation.endpoint->addresses == vector &&
           std::find(addresses, addresses + count, operation.peer) != addresses + count;
  });
  return fi_av_remove(vector->real, addresses, count, flags);
}

fi_ops* FidTable() {
  static fi_ops table = FidOperations(Close);
  return &table;
}

fi_ops_av* Operations() {
  static fi_ops_av table = [] {
    fi_ops_av made = RefuseAll(fi_ops_av{});
    made.insert = Insert;
    made.remove = Remove;
    return made;
  }();
  return &table;
}

}  // namespace

int OpenAddressVector(fid_domain* client, fi_av_attr* attributes, fid_av** opened, void* context) {
  auto* domain = As<Domain>(client);
  if ((attributes->flags & FI_EVENT) != 0) return -FI_ENOSYS;
  auto vector = std::make_unique<AddressVector>();
  vector->domain = domain;
  const std::lock_guard<std::mutex> lock(domain->mutex);
  const int error = fi_av_open(domain->real, attributes, &vector->real, context);
  if (error != 0) return error;
  vector->fid.fclass = FI_CLASS_AV;
  vector->fid.context = context;
  vector->fid.ops = FidTable();
  vector->ops = Operations();
  *opened = vector.release();
  ++domain->users;
  Count(&FaultyLibfabricCounters::address_vectors);
  return 0;
}

}  // namespace faulty_libfabric
