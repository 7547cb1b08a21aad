// Endpoints, without their data transfers.

#include <utility>

#include "objects.h"

namespace faulty_libfabric {
namespace {

constexpr uint64_t kLongestDirectSend = 8192;

void Release(Endpoint& endpoint) {
  if (endpoint.transmit != nullptr) --endpoint.transmit->users;
  if (endpoint.receive != nullptr) --endpoint.receive->users;
  if (endpoint.addresses != nullptr) --endpoint.addresses->users;
  --endpoint.domain->users;
}

void Forget(Endpoint& endpoint) {
  auto& operations = endpoint.domain->operations;
  for (auto at = operations.begin(); at != operations.end();) {
    at = at->second->endpoint == &endpoint ? operations.erase(at) : std::next(at);
  }
}

int Close(fid* client) {
  auto* endpoint = As<Endpoint>(client);
  {
    Domain& domain = *endpoint->domain;
    const std::lock_guard<std::mutex> lock(domain.mutex);
    if (endpoint->regions > 0) return -FI_EBUSY;
    TransmitAll(domain, [&](const Operation& operation) { return operation.endpoint == endpoint; });
    if (const int error = fi_close(&endpoint->real->fid); error != 0) return error;
    // What the real endpoint completed while it closed.
    if (endpoint->transmit != nullptr) Drain(*endpoint->transmit);
    if (endpoint->receive != nullptr) Drain(*endpoint->receive);
    Forget(*endpoint);
    Release(*endpoint);
    Settle(domain);
  }
  delete endpoint;
  Count(&FaultyLibfabricCounters::endpoints, -1);
  return 0;
}

int BindQueue(Endpoint& endpoint, Queue& queue, uint64_t flags) {
  if ((flags & FI_SELECTIVE_COMPLETION) != 0) return -FI_ENOSYS;
  const int error = fi_ep_bind(endpoint.real, &queue.real->fid, flags);
  if (error != 0) return error;
  for (const auto& [flag, bound] :
       {std::pair(FI_TRANSMIT, &Endpoint::transmit), std::pair(FI_RECV, &Endpoint::receive)}) {
    if ((flags & flag) == 0) continue;
    endpoint.*bound = &queue;
    ++queue.users;
  }
  return 0;
}

int Bind(fid* client, fid* bound, uint64_t flags) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  if (endpoint->enabled) return -FI_EOPBADSTATE;
  if (bound->fclass == FI_CLASS_CQ) return BindQueue(*endpoint, *As<Queue>(bound), flags);
  if (bound->fclass != FI_CLASS_AV) return -FI_ENOSYS;
  auto* addresses = As<AddressVector>(bound);
  const int error = fi_ep_bind(endpoint->real, &addresses->real->fid, flags);
  if (error != 0) return error;
  endpoint->addresses = addresses;
  ++addresses->users;
  return 0;
}

int Control(fid* client, int command, void*) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (endpoint->transmit == nullptr || endpoint->receive == nullptr) return -FI_ENOCQ;
  if (endpoint->addresses == nullptr) return -FI_ENOAV;
  const int error = fi_enable(endpoint->real);
  if (error == 0) endpoint->enabled = true;
  return error;
}

int GetName(fid_t client, void* address, size_t* length) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  return fi_getname(&endpoint->real->fid, address, length);
}

// The tables that all endpoints share.
struct Tables {
  fi_ops fid = FidOperations(Close, Bind, Control);
  fi_ops_ep endpoint = RefuseAll(fi_ops_ep{});
  fi_ops_cm management = RefuseAll(fi_ops_cm{});

  Tables() { management.getname = GetName; }
};

}  // namespace

int OpenEndpoint(fid_domain* client, fi_info* info, fid_ep** opened, void* context) {
  static Tables tables;
  auto* domain = As<Domain>(client);
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->domain = domain;
  endpoint->max_msg = endpoint->max_send = info->ep_attr->max_msg_size;
  if (std::string(info->fabric_attr->name) == kDirect) endpoint->max_send = kLongestDirectSend;
  const InfoPtr real = ToReal(info);
  const std::lock_guard<std::mutex> lock(domain->mutex);
  if (const int error = fi_endpoint(domain->real, real.get(), &endpoint->real, context);
      error != 0) {
    return error;
  }
  endpoint->fid.fclass = FI_CLASS_EP;
  endpoint->fid.context = context;
  endpoint->fid.ops = &tables.fid;
  endpoint->ops = &tables.endpoint;
  endpoint->cm = &tables.management;
  endpoint->msg = MessageOperations();
  endpoint->rma = RmaOperations();
  *opened = endpoint.release();
  ++domain->users;
  Count(&FaultyLibfabricCounters::endpoints);
  return 0;
}

}  // namespace faulty_libfabric
