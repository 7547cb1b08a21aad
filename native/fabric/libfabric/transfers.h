// The one-sided operations of a channel: the peer memory that they may access, their pieces, and
// which have ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
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
  uint64_t ticket = 0;  // of a write: its place among those that were queued
};

// Thread-compatible; guarded by the channel's lock.
class Transfers {
 public:
  // More than any arena has slabs.
  static constexpr size_t kMaxRegions = 16384;
  // See LimitReads().
  static constexpr uint64_t kReadPiece = uint64_t{256} << 10;
  static constexpr size_t kMaxReads = 4;
  // See LimitWrites().
  static constexpr uint64_t kWritePiece = uint64_t{256} << 10;
  static constexpr uint64_t kWriteWindow = 4 * kWritePiece;
  static constexpr uint64_t kLargestQuick = kWritePiece / 4;

  struct Ended {
    uint64_t cookie;
    Status status;
  };

  // From now on, reads are cut into pieces of at most kReadPiece bytes. At most kMaxReads pieces
  // are under way, and at most half of all, but one. For a provider that moves all bytes to a peer
  // through one stream: there a request to read waits for the bytes that the peer reads here, and
  // if these are many, the two directions take turns.
  void LimitReads() { limits_reads_ = true; }

  // From now on, writes of more than kLargestQuick bytes are large: they are cut into pieces of at
  // most kWritePiece bytes, and at most kWriteWindow bytes of them are under way. Other writes pass
  // them. Also for such a provider: what it has been given goes first, however small the next
  // write.
  void LimitWrites() { limits_writes_ = true; }

  // Adds a region that the peer shared. Returns ResourceExhausted if it has shared too many.
  Status Learn(const RegionRecord& region);
  void Forget(uint64_t key) { regions_.erase(key); }

  // Queues a read or write in pieces of at most `chunk` bytes. Returns InvalidArgument if the span
  // is not in a shared region, PermissionDenied for a write to a read-only one.
  Status Begin(bool write, const RemoteSpan& span, char* local, void* descriptor, uint64_t cookie,
               uint64_t chunk);
  // Reports an operation that was not started, together with those that have ended.
  void Refuse(uint64_t cookie, const Status& status) { ended_.push_back({cookie, status}); }

  // The next piece of a write; null if there is none, or enough of them are under way.
  const Piece* FrontWrite() const {
    if (!quick_.empty()) return &quick_.front();
    return large_.empty() || WindowIsFull() ? nullptr : &large_.front();
  }
  // The same of a read; null also if enough of them are under way.
  const Piece* FrontRead() const {
    return reads_.empty() || (limits_reads_ && reading_ >= MaxReads()) ? nullptr : &reads_.front();
  }
  // The next piece was started, a write as number started() + 1.
  void PopWrite();
  void PopRead();
  // A piece has ended: `sequence` is 0 for that of a read.
  void OnEnded(uint64_t transfer, uint64_t sequence);
  // Returns the operations that have ended since the last call.
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }
  // Discards what has not been started.
  void Drop() {
    quick_.clear();
    large_.clear();
    reads_.clear();
  }

  // Whether a large write waits for the end of pieces that are under way.
  bool WindowIsFull() const {
    return !large_.empty() && writing_ > 0 && writing_ + large_.front().length > kWriteWindow;
  }
  // Pieces of writes that were queued so far.
  uint64_t begun() const { return begun_; }
  // Whether those up to this ticket have been started; only quick ones, or only large ones.
  bool QuickStartedTo(uint64_t ticket) const {
    return quick_.empty() || quick_.front().ticket > ticket;
  }
  bool LargeStartedTo(uint64_t ticket) const {
    return large_.empty() || large_.front().ticket > ticket;
  }
  // The last ticket of the large write with this cookie, if a piece of it has not been started;
  // otherwise 0.
  uint64_t LargeTicketOf(uint64_t cookie) const;
  // Pieces started so far, and the first of them that has not ended.
  uint64_t started() const { return started_; }
  uint64_t first_unfinished() const {
    return unfinished_.empty() ? started_ + 1 : unfinished_.begin()->first;
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
  bool limits_writes_ = false;
  std::deque<Piece> quick_;  // writes
  std::deque<Piece> large_;  // writes
  uint64_t writing_ = 0;     // bytes of large writes under way
  std::deque<Piece> reads_;
  size_t reading_ = 0;  // pieces of reads under way
  std::map<uint64_t, Transfer> transfers_;
  // The pieces of writes under way by number, with their bytes if they count in `writing_`, or 0.
  std::map<uint64_t, uint64_t> unfinished_;
  uint64_t last_transfer_ = 0;
  uint64_t begun_ = 0;
  uint64_t started_ = 0;
  std::vector<Ended> ended_;
};

}  // namespace rdma_transport::fabric::libfabric
