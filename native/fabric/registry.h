// The one place that names the fabrics there are.
#pragma once

#include <memory>

#include "base/settings.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// Opens the fabric of that name, or with kAuto the best one there is. Unimplemented: this build has
// no such fabric.
Status OpenDevice(FabricChoice choice, std::unique_ptr<Device>* device);

}  // namespace rdma_transport::fabric
