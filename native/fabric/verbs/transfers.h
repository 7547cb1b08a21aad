// The one-sided operations of a channel: the peer memory that they may access, how they are spread
// over queue pairs, and which have ended.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible; guarded by the channel's lock.
class Transfers {
 public:
  // More than any arena has slabs.
  static constexpr size_t kMaxRegions = 16384;

  using Counts = std::array<uint32_t, kMaxQueuePairs>;
  using RemoteEnds = std::array<RegionEnd, kMaxQueuePairs>;
  using QueuePairs = std::vector<std::shared_ptr<QueuePair>>;
  struct Ended {
    uint64_t cookie;
    Status status;
  };

  struct PeerRegion {
    uint64_t length = 0;
    bool writable = false;
    RemoteEnds ends = {};  // by queue pair
  };

  // Adds a region that the peer shared by this record, on a channel with so many queue pairs.
  // Returns ResourceExhausted if the peer has shared too many, DataLoss if the record is malformed.
  Status Learn(std::string_view record, size_t queue_pairs);
  void Forget(uint64_t key) { regions_.erase(key); }
  // Finds the region of a span of the peer's memory. Returns InvalidArgument if the span is not in
  // a shared region, PermissionDenied for a write to a read-only region.
  Status Aim(const RemoteSpan& span, Work::Kind kind, const PeerRegion** region) const;

  // How much of the operation a Begin() starts.
  enum class Part { kWhole, kPiece, kLastPiece };
  // Pushes `work` to the queue pairs, in work requests of at most `chunk` bytes: small work to
  // `main`, shares of large work to all on the ports that are nearest to the memory. `region` is by
  // Aim() of `span`.
  void Begin(const Work& work, Part part, const RemoteSpan& span, const PeerRegion& region,
             const LocalEnds& ends, uint64_t chunk, const QueuePairs& pairs, size_t main);
  // Reports an operation that was not started, together with those that have ended.
  void Refuse(uint64_t cookie, const Status& status) { reported_.push_back({cookie, status}); }
  // The last work request of a share on queue pair `index` has ended.
  void OnEnded(size_t index, const Work& work);
  // Returns the operations that have ended since the last call.
  std::vector<Ended> TakeEnded();

  // The peer announces its regions again for queue pair `index`, if it is used again.
  void ForgetPair(size_t index);
  // Aims a read or write of another queue pair, which was broken at both ends, at queue pair
  // `index` on local port `port`, which is to repeat it. Returns an error if the memory is gone.
  Status Retarget(Work* work, RegisteredMemory* memory, size_t index, size_t port);
  // Whether a work request that a broken queue pair has not ended must be repeated elsewhere.
  static bool IsRepeated(const Work& work) {
    const bool data = work.kind == Work::Kind::kWrite || work.kind == Work::Kind::kRead;
    return data && (work.length != 0 || work.last);  // no binding, and no question
  }
  // What queue pair `index` had not ended was given to others.
  void Leave(size_t index) { ended_[index] = begun_[index]; }

  // Counts the binding of a window on queue pair `index`, for memory that is about to be shared.
  void BeginBind(size_t index) { ++begun_[index]; }
  void EndBind(size_t index) { ++ended_[index]; }

  // Writes and bindings per queue pair, started and ended.
  const Counts& begun() const { return begun_; }
  const Counts& ended() const { return ended_; }

 private:
  static size_t Choose(const PeerRegion& region, const LocalEnds& ends, const QueuePairs& pairs,
                       size_t main, std::array<size_t, kMaxQueuePairs>* used);
  void Push(size_t index, const Work& whole, uint64_t from, uint64_t length, uint64_t chunk,
            QueuePair* pair);

  std::map<uint64_t, PeerRegion> regions_;  // by key
  // Operations of several shares, by cookie.
  struct Divided {
    int unfinished = 0;  // shares that have begun
    bool more = false;   // others have not
  };
  std::map<uint64_t, Divided> divided_;
  Counts begun_ = {};
  Counts ended_ = {};
  std::vector<Ended> reported_;
};

}  // namespace rdma_transport::fabric::verbs
