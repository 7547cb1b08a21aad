// The providers and interfaces of this host by which the fabric can reach peers.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "fabric/libfabric/library.h"

namespace rdma_transport::fabric::libfabric {

struct Provider {
  InfoPtr info;
  // "tcp" for both names that releases of libfabric have for it, otherwise the provider's own.
  std::string name;
  bool card = false;  // not TCP
};

// Finds the providers that the settings allow, best first, each with its best interface: one of a
// card and one over TCP by default. Returns NotFound, with what there is, if there is none;
// InvalidArgument if a setting is malformed. May take some milliseconds.
Status FindProviders(const Library& library, const LibfabricSettings& settings,
                     std::vector<Provider>* providers);

}  // namespace rdma_transport::fabric::libfabric
