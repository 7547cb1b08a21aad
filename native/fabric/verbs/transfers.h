// The one-sided operations of a channel: what of the peer's memory they may reach, how they are
// spread over queue pairs, and which have ended.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible: the channel's lock guards it.
class Transfers {
 public:
  using Counts = std::array<uint32_t, kMostQueuePairs>;
  using QueuePairs = std::vector<std::unique_ptr<QueuePair>>;
  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // What the peer lets be reached.
  void Learn(const RegionRecord& region);
  void Forget(uint64_t key) { regions_.erase(key); }
  // Directs `work` at a span of the peer's memory.
  Status Aim(const RemoteSpan& span, Work* work) const;

  // Hands `length` bytes of `work` to the queue pairs, in pieces of at most `chunk` bytes.
  void Begin(const Work& work, uint64_t length, uint64_t chunk, const QueuePairs& pairs);
  // One that is not under way, and of which its owner hears with the others.
  void Refuse(uint64_t cookie, const Status& status) { told_.push_back({cookie, status}); }
  // A last piece has ended on queue pair `index`.
  void OnEnded(size_t index, const Work& work);
  // Those that have ended since.
  std::vector<Ended> TakeEnded();

  // Writes on each queue pair: all, and those that have ended.
  const Counts& begun() const { return begun_; }
  const Counts& ended() const { return ended_; }

 private:
  struct PeerRegion {
    uint64_t address;
    uint64_t length;
    uint32_t rkey;
    bool writable;
  };

  void Push(size_t index, const Work& whole, uint64_t from, uint64_t length, uint64_t chunk,
            const QueuePairs& pairs);

  std::map<uint64_t, PeerRegion> regions_;  // by key
  std::map<uint64_t, int> shares_;          // under way, of those that are spread; by cookie
  Counts begun_ = {};
  Counts ended_ = {};
  std::vector<Ended> told_;
};

}  // namespace rdma_transport::fabric::verbs
