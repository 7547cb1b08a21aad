// Fabrics and domains.

#include <algorithm>

#include "objects.h"
#include "real.h"

namespace faulty_libfabric {
namespace {

int CloseFabric(fid* client) {
  auto* fabric = As<Fabric>(client);
  if (const int error = fi_close(&fabric->real->fid); error != 0) return error;
  delete fabric;
  Count(&FaultyLibfabricCounters::fabrics, -1);
  return 0;
}

// Whether the client may sleep on one queue: nothing to read, and the timer set.
int TryWait(Fabric& fabric, Queue& queue) {
  Domain& domain = *queue.domain;
  const std::lock_guard<std::mutex> lock(domain.mutex);
  if (queue.wait_descriptor < 0) return -FI_EINVAL;
  Transmit(domain);
  fid* real = &queue.real->fid;
  const int result = fi_trywait(fabric.real, &real, 1);
  // "net" of 1.17 lets clients sleep while its queue holds completions.
  Settle(domain);
  return IsReady(queue) ? -FI_EAGAIN : result;
}

int TryWaits(fid_fabric* client, fid** fids, int count) {
  for (int i = 0; i < count; ++i) {
    if (fids[i]->fclass != FI_CLASS_CQ) return -FI_EINVAL;
    const int result = TryWait(*As<Fabric>(client), *As<Queue>(fids[i]));
    if (result != 0) return result;
  }
  Count(&FaultyLibfabricCounters::trywaits);
  return 0;
}

fi_ops* FabricFidOperations() {
  static fi_ops table = FidOperations(CloseFabric);
  return &table;
}

fi_ops_fabric* FabricOperations() {
  static fi_ops_fabric table = [] {
    fi_ops_fabric made = RefuseAll(fi_ops_fabric{});
    made.domain = OpenDomain;
    made.trywait = TryWaits;
    return made;
  }();
  return &table;
}

int CloseDomain(fid* client) {
  auto* domain = As<Domain>(client);
  {
    const std::lock_guard<std::mutex> lock(domain->mutex);
    if (domain->users > 0) return -FI_EBUSY;
    if (const int error = fi_close(&domain->real->fid); error != 0) return error;
  }
  delete domain;
  Count(&FaultyLibfabricCounters::domains, -1);
  return 0;
}

fi_ops* DomainFidOperations() {
  static fi_ops table = FidOperations(CloseDomain);
  return &table;
}

fi_ops_domain* DomainOperations() {
  static fi_ops_domain table = [] {
    fi_ops_domain made = RefuseAll(fi_ops_domain{});
    made.av_open = OpenAddressVector;
    made.cq_open = OpenQueue;
    made.endpoint = OpenEndpoint;
    return made;
  }();
  return &table;
}

}  // namespace

int OpenFabric(fi_fabric_attr* attributes, fid_fabric** opened, void* context) {
  const RealLibrary* real = Real();
  if (real == nullptr || !EnvironmentIsValid()) return -FI_ENOSYS;
  fi_fabric_attr copy = *attributes;
  std::string name = real->provider;
  copy.prov_name = name.data();
  copy.api_version = std::min(copy.api_version, real->version());
  auto fabric = std::make_unique<Fabric>();
  const auto since = Current()->rma_since;
  fabric->emulates_rma = since.has_value() && FI_VERSION_LT(attributes->api_version, *since);
  const int error = real->fabric(&copy, &fabric->real, context);
  if (error != 0) return error;
  fabric->fid.fclass = FI_CLASS_FABRIC;
  fabric->fid.context = context;
  fabric->fid.ops = FabricFidOperations();
  fabric->ops = FabricOperations();
  fabric->api_version = fabric->real->api_version;
  *opened = fabric.release();
  Count(&FaultyLibfabricCounters::fabrics);
  return 0;
}

int OpenDomain(fid_fabric* client, fi_info* info, fid_domain** opened, void* context) {
  auto domain = std::make_unique<Domain>();
  domain->fabric = As<Fabric>(client);
  domain->name = info->domain_attr->name;
  domain->mr_mode = info->domain_attr->mr_mode;
  domain->only_remote = OnlyRemote(*info);
  const InfoPtr real_info = ToReal(info);
  const int error = fi_domain(domain->fabric->real, real_info.get(), &domain->real, context);
  if (error != 0) return error;
  domain->fid.fclass = FI_CLASS_DOMAIN;
  domain->fid.context = context;
  domain->fid.ops = DomainFidOperations();
  domain->ops = DomainOperations();
  domain->mr = RegionOperations();
  *opened = domain.release();
  Count(&FaultyLibfabricCounters::domains);
  return 0;
}

}  // namespace faulty_libfabric

extern "C" int fi_fabric(fi_fabric_attr* attributes, fid_fabric** opened, void* context) {
  return faulty_libfabric::OpenFabric(attributes, opened, context);
}
