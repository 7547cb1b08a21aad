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
  // More than the slabs of any arena.
  static constexpr size_t kMaxRegions = 16384;

  using Counts = std::array<uint32_t, kMaxQueuePairs>;
  using RemoteKeys = std::array<uint32_t, kMaxQueuePairs>;
  using QueuePairs = std::vector<std::unique_ptr<QueuePair>>;
  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // What the peer lets be reached, by these keys on each queue pair. ResourceExhausted: it
  // announced too many regions.
  Status Learn(const RegionRecord& region, const RemoteKeys& keys);
  void Forget(uint64_t key) { regions_.erase(key); }
  // Directs `work` at a span of the peer's memory.
  Status Aim(const RemoteSpan& span, Work* work, RemoteKeys* keys) const;

  // Hands `length` bytes of `work` to the queue pairs, in pieces of at most `chunk` bytes.
  void Begin(const Work& work, const RemoteKeys& keys, uint64_t length, uint64_t chunk,
             const QueuePairs& pairs);
  // One that is not under way, and of which its owner hears with the others.
  void Refuse(uint64_t cookie, const Status& status) { told_.push_back({cookie, status}); }
  // A last piece has ended on queue pair `index`.
  void OnEnded(size_t index, const Work& work);
  // Those that have ended since.
  std::vector<Ended> TakeEnded();

  // A window is bound on queue pair `index`, for what the peer will be told of.
  void BeginBind(size_t index) { ++begun_[index]; }
  void EndBind(size_t index) { ++ended_[index]; }

  // Writes and bindings on each queue pair: all, and those that have ended.
  const Counts& begun() const { return begun_; }
  const Counts& ended() const { return ended_; }

 private:
  struct PeerRegion {
    uint64_t address;
    uint64_t length;
    RemoteKeys keys;
    bool writable;
  };

  void Push(size_t index, const Work& whole, const RemoteKeys& keys, uint64_t from, uint64_t length,
            uint64_t chunk, const QueuePairs& pairs);

  std::map<uint64_t, PeerRegion> regions_;  // by key
  std::map<uint64_t, int> shares_;          // under way, of those that are spread; by cookie
  Counts begun_ = {};
  Counts ended_ = {};
  std::vector<Ended> told_;
};

}  // namespace rdma_transport::fabric::verbs
