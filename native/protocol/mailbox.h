// Where tensors that have come meet those who wait for them, by step and key.
//
// A tensor may come before its step begins here, and must not surface after its step has ended:
// EndStep() throws away what is left of a step and remembers it for what still comes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "protocol/key_id.h"
#include "protocol/pending_recv.h"
#include "protocol/tensor.h"

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
  enum class Taken {
    kArrival,  // it has come
    kWaiting,  // the recv is kept until Put(), Remove() or TakePending()
    kEnded,    // nothing comes for this step any more, and nothing was kept
  };
  // `source` is the task that sends it.
  Taken TakeOrWait(int64_t step, const KeyId& key, const Traffic* source,
                   const std::shared_ptr<PendingRecv>& recv, Arrival* arrival);
  // Who waits for it; null: nobody yet, and it is kept (or thrown away when its step has ended).
  std::shared_ptr<PendingRecv> Put(int64_t step, const KeyId& key, Arrival* arrival);
  void Remove(int64_t step, const KeyId& key, const PendingRecv* recv);
  // Takes out those who wait in this step for a tensor from `source`.
  std::list<std::shared_ptr<PendingRecv>> TakePending(int64_t step, const Traffic* source);
  void EndStep(int64_t step);
  // Whether EndStep() was called for it lately.
  bool HasEnded(int64_t step) const;
  // Takes out all who wait in this step.
  std::list<std::shared_ptr<PendingRecv>> TakeAllPending(int64_t step);
  // Throws away what came for a step and is `unwanted`.
  void Forget(int64_t step, const std::function<bool(const Arrival&)>& unwanted);
  size_t kept() const;

 private:
  struct Waiting {
    std::shared_ptr<PendingRecv> recv;
    const Traffic* source;
  };
  struct Box {
    std::deque<Arrival> arrivals;
    std::deque<Waiting> recvs;
  };
  using Step = std::unordered_map<KeyId, Box, KeyIdHash>;
  template <typename Chosen>
  std::list<std::shared_ptr<PendingRecv>> TakePendingIf(int64_t step, Chosen chosen);
  struct Shard {
    mutable std::mutex mu;
    std::unordered_map<int64_t, Step> steps;
    std::unordered_set<int64_t> ended;
    std::deque<int64_t> ended_order;
  };

  static size_t ShardIndex(int64_t step) {
    return static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15 >> 60;
  }
  Shard& ShardOf(int64_t step) { return shards_[ShardIndex(step)]; }
  const Shard& ShardOf(int64_t step) const { return shards_[ShardIndex(step)]; }

  std::array<Shard, 16> shards_;
};

}  // namespace rdma_transport
