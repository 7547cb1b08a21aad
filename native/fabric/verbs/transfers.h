// The one-sided operations of a channel: the peer memory that they may access, and which have
// ended.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
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

  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // Adds a region that the peer shared by this record. Returns ResourceExhausted if the peer has
  // shared too many, DataLoss if the record is malformed.
  Status Learn(std::string_view record);
  void Forget(uint64_t key) { regions_.erase(key); }
  // Finds the region of a span of the peer's memory. Returns InvalidArgument if the span is not in
  // a shared region, PermissionDenied for a write to a read-only region.
  Status Aim(const RemoteSpan& span, Work::Kind kind, const RegionRecord** region) const;

  // Pushes `work` to the queue pair, in work requests of at most `chunk` bytes. `region` is by
  // Aim() of `span`. If `proof` is not null, a read of one byte to there follows a write, which
  // then ends with it: it does not pass the write on its way into the peer's memory.
  static void Push(Work work, const RemoteSpan& span, const RegionRecord& region, uint64_t chunk,
                   QueuePair* pair, const Registration* proof);
  // An operation has ended, or was not started.
  void End(uint64_t cookie, const Status& status) { ended_.push_back({cookie, status}); }
  // Returns the operations that have ended since the last call.
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }

 private:
  std::map<uint64_t, RegionRecord> regions_;  // by key
  std::vector<Ended> ended_;
};

}  // namespace rdma_transport::fabric::verbs
