// The real library underneath.
#pragma once

#include <rdma/fabric.h>

#include <string>

namespace faulty_libfabric {

struct RealLibrary {
  decltype(&::fi_getinfo) getinfo = nullptr;
  decltype(&::fi_freeinfo) freeinfo = nullptr;
  decltype(&::fi_dupinfo) dupinfo = nullptr;
  decltype(&::fi_fabric) fabric = nullptr;
  decltype(&::fi_strerror) strerror = nullptr;
  decltype(&::fi_version) version = nullptr;
  // Of TCP with native FI_EP_RDM endpoints.
  std::string provider;
};

// Null, with a message on stderr, on a host without libfabric.
const RealLibrary* Real();

}  // namespace faulty_libfabric
