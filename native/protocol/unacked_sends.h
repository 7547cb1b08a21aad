// Tensors that were sent over a channel, which may lose what is on its way, until the peer
// certainly has word of them.
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

// A tensor of which the peer may not have heard.
struct UnackedTensor {
  int64_t step = 0;
  std::string key;
  uint64_t bytes = 0;
  std::unique_ptr<FallbackSend> tensor;
};

// Of one channel. Thread-safe.
class UnackedSends {
 public:
  // `number`: of its notification. False, and `tensor` untouched: the channel has ended already.
  bool Keep(uint64_t number, UnackedTensor* tensor);
  // All notifications up to that number have arrived.
  void OnDelivered(uint64_t number);
  // The channel has ended: what may not have arrived. Keep() refuses from now on.
  std::vector<UnackedTensor> TakeAll();

 private:
  std::mutex mu_;
  std::deque<std::pair<uint64_t, UnackedTensor>> tensors_;  // by number
  uint64_t delivered_ = 0;
  bool ended_ = false;
};

}  // namespace rdma_transport
