#include "collectives/message_request.h"

#include <algorithm>

namespace rdma_transport::collectives {

bool MessageRequest::Test() const {
  const auto done = [this] {
    std::lock_guard<std::mutex> lock(state_->mu);
    return call_->done;
  };
  if (done()) return true;
  state_->CheckAlive(call_->peer);
  return done();
}

Status MessageRequest::Wait(const Patience& patience) const {
  std::unique_lock<std::mutex> lock(state_->mu);
  RDMA_RETURN_IF_ERROR(state_->WaitPolling(
      &lock, patience, [this] { return call_->done; }, [this] { state_->CheckAlive(call_->peer); },
      receive() != nullptr ? "no message arrived" : "the receiver did not take the message"));
  return call_->status;
}

bool MessageRequest::Cancel() const {
  std::lock_guard<std::mutex> lock(state_->mu);
  auto& receives = state_->inbox.receives;
  const auto found = std::find(receives.begin(), receives.end(), call_);
  if (found == receives.end()) return false;
  receives.erase(found);
  return true;
}

}  // namespace rdma_transport::collectives
