// The one-sided operations of a channel: the peer memory that they may access, their pieces, and
// which have ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// A piece of a read or write, not yet started.
struct Piece {
  bool write = false;
  char* local = nullptr;
  void* descriptor = nullptr;
  uint64_t length = 0;
  uint64_t address = 0;
  uint64_t key = 0;
  uint64_t transfer = 0;
};

// Thread-compatible; guarded by the channel's lock.
class Transfers {
 public:
  // More than any arena has slabs.
  static constexpr size_t kMaxRegions = 16384;

  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // Adds a region that the peer shared. Returns ResourceExhausted if it has shared too many.
  Status Learn(const RegionRecord& region);
  void Forget(uint64_t key) { regions_.erase(key); }
  // Returns InvalidArgument if the span is not in a shared region, PermissionDenied for a write to
  // a read-only one.
  Status Check(const RemoteSpan& span, Access access) const;

  // Queues a read or write in pieces of at most `chunk` bytes, unless Check() refuses it.
  Status Begin(bool write, const RemoteSpan& span, char* local, void* descriptor, uint64_t cookie,
               uint64_t chunk);
  // Reports an operation that was not started, together with those that have ended.
  void Refuse(uint64_t cookie, const Status& status) { ended_.push_back({cookie, status}); }

  // The next piece of a write, or of a read; null if there is none.
  const Piece* FrontWrite() const { return writes_.empty() ? nullptr : &writes_.front(); }
  const Piece* FrontRead() const { return reads_.empty() ? nullptr : &reads_.front(); }
  // The next piece was started, a write as number started() + 1.
  void PopWrite();
  void PopRead() { reads_.pop_front(); }
  // A piece has ended: `sequence` is 0 for that of a read.
  void OnEnded(uint64_t transfer, uint64_t sequence);
  // Returns the operations that have ended since the last call.
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }
  // Discards what has not been started.
  void Drop() {
    writes_.clear();
    reads_.clear();
  }

  // Pieces of writes that were queued so far, that were started, and the first of these that has
  // not ended.
  uint64_t begun() const { return started_ + writes_.size(); }
  uint64_t started() const { return started_; }
  uint64_t first_unfinished() const {
    return unfinished_.empty() ? started_ + 1 : *unfinished_.begin();
  }

 private:
  struct Transfer {
    uint64_t cookie;
    uint64_t left;  // pieces
  };

  std::map<uint64_t, RegionRecord> regions_;  // by key
  std::deque<Piece> writes_;
  std::deque<Piece> reads_;
  std::map<uint64_t, Transfer> transfers_;
  std::set<uint64_t> unfinished_;  // pieces of writes under way, by number
  uint64_t last_transfer_ = 0;
  uint64_t started_ = 0;
  std::vector<Ended> ended_;
};

}  // namespace rdma_transport::fabric::libfabric
