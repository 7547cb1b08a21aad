#include "fabric/verbs/inbox.h"

namespace rdma_transport::fabric::verbs {

Status Inbox::Open(Adapter* adapter, uint64_t size, uint32_t most_batches) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteReadWrite, nullptr, &memory_));
  reader_.Attach(memory_->address(), size, most_batches);
  return adapter->Expose(memory_->address(), size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                         &registration_);
}

}  // namespace rdma_transport::fabric::verbs
