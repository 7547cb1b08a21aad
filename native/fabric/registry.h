// The one place that names the fabrics there are.
#pragma once

#include <memory>

#include "base/settings.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// Opens what the settings ask for: one fabric by name, which then must be there, or with `auto`
// every one that this host has.
Status OpenDevice(const Settings& settings, std::unique_ptr<Device>* device);

}  // namespace rdma_transport::fabric
