#include "fabric/verbs/inbox.h"

#include <utility>

namespace rdma_transport::fabric::verbs {

Status Inbox::Open(Adapter* adapter, uint64_t size, uint32_t most_batches) {
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(0, size, Access::kRemoteReadWrite, nullptr, &memory_));
  reader_.Attach(memory_->address(), size, most_batches);
  return adapter->Expose(memory_->address(), size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
                         &registration_);
}

Status Inbox::Keep(std::string_view part) {
  parts_.append(part);
  if (parts_.size() <= kLongestNotification) return OkStatus();
  return Status(Code::kDataLoss, "a notification that does not end");
}

Status Inbox::Complete(std::string_view last, std::string_view* whole) {
  *whole = last;
  if (parts_.empty()) return OkStatus();
  RDMA_RETURN_IF_ERROR(Keep(last));
  whole_ = std::exchange(parts_, std::string());
  *whole = whole_;
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
