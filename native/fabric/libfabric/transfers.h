// The one-sided operations of a channel: the peer memory that they may access, their pieces, and
// which have ended.
#pragma once

#include <algorithm>
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
  uint64_t sequence = 0;  // of a write, among those of the channel
};

// Thread-compatible; guarded by the channel's lock.
class Transfers {
 public:
  // More than any arena has slabs.
  static constexpr size_t kMaxRegions = 16384;
  // See LimitReads().
  static constexpr uint64_t kReadPiece = uint64_t{256} << 10;
  static constexpr size_t kMaxReads = 4;

  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // From now on, reads are cut into pieces of at most kReadPiece bytes. At most kMaxReads pieces
  // are under way, and at most half of all, but one. For a provider that moves all bytes to a peer
  // through one stream: there a request to read waits for the bytes that the peer reads here, and
  // if these are many, the two directions take turns.
  void LimitReads() { limits_reads_ = true; }

  // Adds a region that the peer shared. Returns ResourceExhausted if it has shared too many.
  Status Learn(const RegionRecord& region);
  void Forget(uint64_t key) { regions_.erase(key); }

  // Queues a read or write in pieces of at most `chunk` bytes. Returns InvalidArgument if the span
  // is not in a shared region, PermissionDenied for a write to a read-only one.
  Status Begin(bool write, const RemoteSpan& span, char* local, void* descriptor, uint64_t cookie,
               uint64_t chunk);
  // Reports an operation that was not started, together with those that have ended.
  void Refuse(uint64_t cookie, const Status& status) { ended_.push_back({cookie, status}); }

  // The next piece of a write, or null.
  const Piece* FrontWrite() const { return writes_.empty() ? nullptr : &writes_.front(); }
  // The same of a read; null also if enough of them are under way.
  const Piece* FrontRead() const {
    return reads_.empty() || (limits_reads_ && reading_ >= MaxReads()) ? nullptr : &reads_.front();
  }
  // The next piece was started.
  void PopWrite();
  void PopRead();
  // A piece has ended: `sequence` is 0 for that of a read.
  void OnEnded(uint64_t transfer, uint64_t sequence);
  // Returns the operations that have ended since the last call.
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }
  // Discards what has not been started.
  void Drop() {
    writes_.clear();
    reads_.clear();
  }

  // Writes queued and started so far, and how many of the first ones have all ended.
  uint64_t begun() const { return begun_; }
  uint64_t started() const { return started_; }
  uint64_t first_unfinished() const {
    return unfinished_.empty() ? started_ + 1 : *unfinished_.begin();
  }

 private:
  struct Transfer {
    uint64_t cookie;
    uint64_t left;  // pieces
  };

  size_t MaxReads() const {
    return std::clamp<size_t>((reads_.size() + reading_) / 2, 1, kMaxReads);
  }

  std::map<uint64_t, RegionRecord> regions_;  // by key
  bool limits_reads_ = false;
  std::deque<Piece> writes_;
  std::deque<Piece> reads_;
  size_t reading_ = 0;  // pieces of reads under way
  std::map<uint64_t, Transfer> transfers_;
  std::set<uint64_t> unfinished_;  // sequences of the writes under way
  uint64_t last_transfer_ = 0;
  uint64_t begun_ = 0;
  uint64_t started_ = 0;
  std::vector<Ended> ended_;
};

}  // namespace rdma_transport::fabric::libfabric
