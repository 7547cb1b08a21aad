// Tensors sent over a channel, which may lose what is in flight, until their notifications are
// known to have arrived.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "protocol/tensor.h"

namespace rdma_transport {

// A tensor whose notification may not have arrived.
struct UnackedTensor {
  int64_t step = 0;
  std::string key;
  uint64_t bytes = 0;
  std::unique_ptr<FallbackSend> tensor;
};

// Serves one channel. Thread-safe.
class UnackedSends {
 public:
  // Keeps the tensor; `number` is its notification's. Returns false and leaves `tensor` untouched
  // if the channel has ended.
  bool Keep(uint64_t number, UnackedTensor* tensor);
  // All notifications up to `number` have arrived: drops their tensors.
  void OnDelivered(uint64_t number);
  // The channel has ended: returns the tensors that may not have arrived. Keep() fails from now on.
  std::vector<UnackedTensor> TakeAll();

 private:
  std::mutex mu_;
  std::deque<std::pair<uint64_t, UnackedTensor>> tensors_;  // by number
  uint64_t delivered_ = 0;
  bool ended_ = false;
};

}  // namespace rdma_transport
