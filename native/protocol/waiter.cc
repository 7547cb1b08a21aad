#include "protocol/waiter.h"

#include <utility>

namespace rdma_transport {

bool Waiter::Claim() {
  // Removal may drop the list's reference; the caller holds one of his own.
  std::lock_guard<std::mutex> lock(mu_);
  if (claimed_) return false;
  claimed_ = true;
  WaiterList* list = std::exchange(list_, nullptr);
  if (list != nullptr) list->Remove(this);
  return true;
}

bool Waiter::claimed() const {
  std::lock_guard<std::mutex> lock(mu_);
  return claimed_;
}

bool Waiter::AskGrpc() {
  std::lock_guard<std::mutex> lock(mu_);
  return !claimed_ && !std::exchange(grpc_asked_, true);
}

bool WaiterList::Add(const std::shared_ptr<Waiter>& waiter, Status* shut_reason) {
  std::lock_guard<std::mutex> waiter_lock(waiter->mu_);
  if (waiter->claimed_) return true;
  std::lock_guard<std::mutex> lock(mu_);
  if (!shut_.ok()) {
    *shut_reason = shut_;
    return false;
  }
  waiters_.push_front(waiter);
  waiter->list_ = this;
  waiter->epoch_ = epoch_;
  waiter->position_ = waiters_.begin();
  return true;
}

// With the waiter's lock held. Of another epoch: TakeAll() has moved the node to its caller.
void WaiterList::Remove(Waiter* waiter) {
  std::lock_guard<std::mutex> lock(mu_);
  if (waiter->epoch_ == epoch_) waiters_.erase(waiter->position_);
}

std::list<std::shared_ptr<Waiter>> WaiterList::TakeAll(const Status& shut_reason) {
  std::lock_guard<std::mutex> lock(mu_);
  shut_ = shut_reason;
  ++epoch_;
  return std::exchange(waiters_, {});
}

void WaiterList::Reopen() {
  std::lock_guard<std::mutex> lock(mu_);
  shut_ = OkStatus();
}

size_t WaiterList::size() const {
  std::lock_guard<std::mutex> lock(mu_);
  return waiters_.size();
}

void FailAll(std::list<std::shared_ptr<Waiter>> waiters, const Status& status) {
  for (const auto& waiter : waiters) {
    if (!waiter->Claim()) continue;
    Delivery delivery;
    delivery.status = status;
    waiter->OnDelivery(std::move(delivery));
  }
}

}  // namespace rdma_transport
