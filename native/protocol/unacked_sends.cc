#include "protocol/unacked_sends.h"

#include <algorithm>

namespace rdma_transport {

bool UnackedSends::Keep(uint64_t number, UnackedTensor* tensor) {
  std::lock_guard<std::mutex> lock(mu_);
  if (number <= delivered_) return true;
  if (ended_) return false;
  tensors_.emplace_back(number, std::move(*tensor));
  return true;
}

void UnackedSends::OnDelivered(uint64_t number) {
  std::vector<UnackedTensor> confirmed;  // dropped after unlocking
  std::lock_guard<std::mutex> lock(mu_);
  delivered_ = std::max(delivered_, number);
  // Several threads add entries out of order, so the first one may hide others for a while.
  while (!tensors_.empty() && tensors_.front().first <= delivered_) {
    confirmed.push_back(std::move(tensors_.front().second));
    tensors_.pop_front();
  }
}

std::vector<UnackedTensor> UnackedSends::TakeAll() {
  std::vector<UnackedTensor> lost;
  std::lock_guard<std::mutex> lock(mu_);
  ended_ = true;
  for (auto& [number, tensor] : tensors_) {
    if (number > delivered_) lost.push_back(std::move(tensor));
  }
  tensors_.clear();
  return lost;
}

}  // namespace rdma_transport
