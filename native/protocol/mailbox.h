// Where tensors that have come meet those who wait for them, by step and key.
//
// A tensor may come before its step begins here, and must not surface after its step has ended:
// EndStep() throws away what is left of a step and remembers it for what still comes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "protocol/key_id.h"
#include "protocol/tensor.h"
#include "protocol/waiter.h"

namespace rdma_transport {

// What came for a key: a tensor, or word that it waits at the sender.
struct Arrival {
  Delivery delivery;
  bool pull = false;
  std::string reason;            // of a pull
  const void* origin = nullptr;  // the link that brought it, only to tell it from others
  Traffic* traffic = nullptr;    // with whom it came
  // Set when the bytes are not readable here yet: they must be read at `source` first.
  std::shared_ptr<fabric::Channel> channel;
  fabric::RemoteSpan source;
};

// Thread-safe.
class Mailbox {
 public:
  // True: it has come, into `arrival`. False: `waiter` is kept until Put() or Remove().
  bool TakeOrWait(int64_t step, const KeyId& key, const std::shared_ptr<Waiter>& waiter,
                  Arrival* arrival);
  // Who waits for it; null: nobody yet, and it is kept (or thrown away when its step has ended).
  std::shared_ptr<Waiter> Put(int64_t step, const KeyId& key, Arrival* arrival);
  void Remove(int64_t step, const KeyId& key, const Waiter* waiter);
  void EndStep(int64_t step);
  // The same, but the step may begin anew.
  void ClearStep(int64_t step);
  // Throws away what came from `origin` for a step.
  void Forget(int64_t step, const void* origin);
  size_t kept() const;

 private:
  struct Box {
    std::deque<Arrival> arrivals;
    std::deque<std::shared_ptr<Waiter>> waiters;
  };
  using Step = std::unordered_map<KeyId, Box, KeyIdHash>;
  Step TakeOut(int64_t step, bool ended);
  struct Shard {
    mutable std::mutex mu;
    std::unordered_map<int64_t, Step> steps;
    std::unordered_set<int64_t> ended;
    std::deque<int64_t> ended_order;
  };

  Shard& ShardOf(int64_t step) {
    return shards_[static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15 >> 60];
  }

  std::array<Shard, 16> shards_;
};

}  // namespace rdma_transport
