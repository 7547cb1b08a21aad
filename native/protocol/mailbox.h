// The place where arrived tensors meet their pending receives, by step and key.
//
// A tensor may arrive before its step begins here, and must not be delivered after its step has
// ended. EndStep() therefore discards what is left of a step, and remembers the step so that late
// tensors are discarded too.
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

// What arrived for a key: a tensor, or a notice that it waits at the sender (`pull`).
struct Arrival {
  Delivery delivery;
  bool pull = false;
  std::string reason;            // why the sender uses gRPC
  const void* origin = nullptr;  // the link it arrived on; compared, never dereferenced
  Traffic* traffic = nullptr;    // of the peer that sent it
  // Set if the bytes must first be read from `source` over `channel`.
  std::shared_ptr<fabric::Channel> channel;
  fabric::RemoteSpan source;

  PeerId peer() const { return &traffic->tasks; }
};

// Thread-safe.
class Mailbox {
 public:
  enum class Taken {
    kArrival,  // `arrival` is set
    kWaiting,  // `recv` is kept until Put(), Remove() or TakePending()
    kPulled,   // `recv` is kept as well, and `arrival` is a notice
    kEnded,    // the step has ended; `recv` was not kept
  };
  // Takes the tensor, or keeps `recv` until it arrives. `source` is the task that sends it.
  Taken TakeOrWait(int64_t step, const KeyId& key, PeerId source,
                   const std::shared_ptr<PendingRecv>& recv, Arrival* arrival);
  // Returns the receive that waits for the tensor and leaves `arrival` to the caller. If there is
  // none, returns null and keeps the tensor, or drops it if its step has ended. A notice is put in
  // the same way, but the receive stays here: the notice may be out of date, so a tensor may
  // follow.
  std::shared_ptr<PendingRecv> Put(int64_t step, const KeyId& key, Arrival* arrival);
  void Remove(int64_t step, const KeyId& key, const PendingRecv* recv);
  // Removes and returns the receives of this step that wait for a tensor from `source`.
  std::list<std::shared_ptr<PendingRecv>> TakePending(int64_t step, PeerId source);
  void EndStep(int64_t step);
  // If `closes` returns true: discards what arrived, and what will, as if the step had ended.
  // Pending receives stay. `closes` is called with a lock held.
  void CloseStep(int64_t step, const std::function<bool()>& closes);
  // Undoes CloseStep() for what follows.
  void ReopenStep(int64_t step);
  // Returns whether EndStep() or CloseStep() was called for the step recently.
  bool HasEnded(int64_t step) const;
  // Removes and returns all pending receives of this step.
  std::list<std::shared_ptr<PendingRecv>> TakeAllPending(int64_t step);
  // Discards the arrivals of a step for which `unwanted` returns true.
  void Discard(int64_t step, const std::function<bool(const Arrival&)>& unwanted);
  // Number of unclaimed tensors.
  size_t kept() const;

 private:
  struct Waiting {
    std::shared_ptr<PendingRecv> recv;
    PeerId source;
  };
  struct Box {  // nearly always of one element; an empty list allocates nothing
    std::list<Arrival> arrivals;
    std::list<Waiting> recvs;

    bool Pull(std::shared_ptr<PendingRecv>* recv) const;
  };
  using Step = std::unordered_map<KeyId, Box, KeyIdHash>;
  template <typename Chosen>
  std::list<std::shared_ptr<PendingRecv>> TakePendingIf(int64_t step, Chosen chosen);
  struct Shard {
    mutable std::mutex mu;
    std::unordered_map<int64_t, Step> steps;
    std::unordered_set<int64_t> ended;
    std::deque<int64_t> ended_order;

    void RememberEnd(int64_t step);
  };

  static size_t ShardIndex(int64_t step) {
    return static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15 >> 60;
  }
  Shard& ShardOf(int64_t step) { return shards_[ShardIndex(step)]; }
  const Shard& ShardOf(int64_t step) const { return shards_[ShardIndex(step)]; }

  std::array<Shard, 16> shards_;
};

}  // namespace rdma_transport
