// Endpoints, without their data transfers.

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
  // All operations complete in the real queue, so that none is forgotten.
  const int error = fi_ep_bind(endpoint.real, &queue.real->fid, flags & ~FI_SELECTIVE_COMPLETION);
  if (error != 0) return error;
  const bool selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
  if ((flags & FI_TRANSMIT) != 0) {
    endpoint.transmit = &queue;
    endpoint.transmit_selective = selective;
    ++queue.users;
  }
  if ((flags & FI_RECV) != 0) {
    endpoint.receive = &queue;
    endpoint.receive_selective = selective;
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

ssize_t Cancel(fid_t client, void* context) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  for (const auto& [address, operation] : endpoint->domain->operations) {
    if (operation->endpoint == endpoint && operation->kind == Kind::kReceive &&
        operation->context == context) {
      return fi_cancel(&endpoint->real->fid, address);
    }
  }
  return -FI_ENOENT;
}

int GetOption(fid_t client, int level, int name, void* value, size_t* length) {
  return fi_getopt(&As<Endpoint>(client)->real->fid, level, name, value, length);
}

int SetOption(fid_t client, int level, int name, const void* value, size_t length) {
  return fi_setopt(&As<Endpoint>(client)->real->fid, level, name, value, length);
}

int GetName(fid_t client, void* address, size_t* length) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  return fi_getname(&endpoint->real->fid, address, length);
}

int SetName(fid_t client, void* address, size_t length) {
  auto* endpoint = As<Endpoint>(client);
  const std::lock_guard<std::mutex> lock(endpoint->domain->mutex);
  return fi_setname(&endpoint->real->fid, address, length);
}

// The tables that all endpoints share.
struct Tables {
  fi_ops fid = FidOperations(Close, Bind, Control);
  fi_ops_ep endpoint = RefuseAll(fi_ops_ep{});
  fi_ops_cm management = RefuseAll(fi_ops_cm{});
  fi_ops_tagged tagged = RefuseAll(fi_ops_tagged{});
  fi_ops_atomic atomic = RefuseAll(fi_ops_atomic{});
  fi_ops_collective collective = RefuseAll(fi_ops_collective{});

  Tables() {
    endpoint.cancel = Cancel;
    endpoint.getopt = GetOption;
    endpoint.setopt = SetOption;
    management.getname = GetName;
    management.setname = SetName;
  }
};

}  // namespace

int OpenEndpoint(fid_domain* client, fi_info* info, fid_ep** opened, void* context) {
  static Tables tables;
  auto* domain = As<Domain>(client);
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->domain = domain;
  endpoint->transmit_flags = info->tx_attr->op_flags;
  endpoint->receive_flags = info->rx_attr->op_flags;
  endpoint->max_msg = endpoint->max_send = info->ep_attr->max_msg_size;
  if (std::string(info->fabric_attr->name) == kDirect) endpoint->max_send = kLongestDirectSend;
  endpoint->inject = info->tx_attr->inject_size;
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
  endpoint->tagged = &tables.tagged;
  endpoint->atomic = &tables.atomic;
  endpoint->collective = &tables.collective;
  *opened = endpoint.release();
  ++domain->users;
  Count(&FaultyLibfabricCounters::endpoints);
  return 0;
}

}  // namespace faulty_libfabric
