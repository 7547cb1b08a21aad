#include "protocol/pending_recv.h"

#include <utility>

namespace rdma_transport {

bool PendingRecv::Claim() {
  // Removal may drop the list's reference; the caller holds its own.
  std::lock_guard<std::mutex> lock(mu_);
  if (claimed_) return false;
  claimed_ = true;
  PendingRecvList* list = std::exchange(list_, nullptr);
  if (list != nullptr) list->Remove(this);
  return true;
}

bool PendingRecv::claimed() const {
  std::lock_guard<std::mutex> lock(mu_);
  return claimed_;
}

bool PendingRecv::AskGrpc() {
  std::lock_guard<std::mutex> lock(mu_);
  return !claimed_ && !std::exchange(grpc_asked_, true);
}

bool PendingRecv::uses_grpc() const {
  std::lock_guard<std::mutex> lock(mu_);
  return grpc_asked_;
}

bool PendingRecvList::Add(const std::shared_ptr<PendingRecv>& recv, Status* shut_reason) {
  std::lock_guard<std::mutex> recv_lock(recv->mu_);
  if (recv->claimed_) return true;
  std::lock_guard<std::mutex> lock(mu_);
  if (!shut_.ok()) {
    *shut_reason = shut_;
    return false;
  }
  recvs_.push_front(recv);
  recv->list_ = this;
  recv->epoch_ = epoch_;
  recv->position_ = recvs_.begin();
  return true;
}

// Requires the pending receive's lock. If the epoch differs, TakeAll() has moved the node to its
// caller.
void PendingRecvList::Remove(PendingRecv* recv) {
  std::lock_guard<std::mutex> lock(mu_);
  if (recv->epoch_ == epoch_) recvs_.erase(recv->position_);
}

std::list<std::shared_ptr<PendingRecv>> PendingRecvList::TakeAll(const Status& shut_reason) {
  std::lock_guard<std::mutex> lock(mu_);
  shut_ = shut_reason;
  ++epoch_;
  return std::exchange(recvs_, {});
}

void PendingRecvList::Reopen() {
  std::lock_guard<std::mutex> lock(mu_);
  shut_ = OkStatus();
}

size_t PendingRecvList::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return recvs_.size();
}

void FailAll(std::list<std::shared_ptr<PendingRecv>> recvs, const Status& status) {
  for (const auto& recv : recvs) {
    if (!recv->Claim()) continue;
    Delivery delivery;
    delivery.status = status;
    recv->OnDelivery(std::move(delivery));
  }
}

}  // namespace rdma_transport
