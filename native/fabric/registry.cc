#include "fabric/registry.h"

#include "fabric/shm/device.h"

namespace rdma_transport::fabric {

Status OpenDevice(FabricChoice choice, std::unique_ptr<Device>* device) {
  switch (choice) {
    case FabricChoice::kAuto:
    case FabricChoice::kShm:
      return shm::ShmDevice::Create(device);
    case FabricChoice::kVerbs:
      return Status(Code::kUnimplemented,
                    "RDMA_TRANSPORT_FABRIC=verbs: this build has no verbs fabric; use shm or auto");
    case FabricChoice::kGrpc:
      break;
  }
  return Status(Code::kFailedPrecondition, "RDMA_TRANSPORT_FABRIC=grpc opens no fabric");
}

}  // namespace rdma_transport::fabric
