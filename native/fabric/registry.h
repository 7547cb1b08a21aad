// The list of all fabrics.
#pragma once

#include <memory>

#include "base/settings.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// Opens the fabrics that the settings request. A fabric requested by name must be available; `auto`
// opens all available fabrics. Returns FailedPrecondition if `settings` select gRPC.
Status OpenDevice(const Settings& settings, std::unique_ptr<Device>* device);

}  // namespace rdma_transport::fabric
