// The one-sided operations of a channel, and their pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "base/arrivals.h"
#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/transfer_base.h"
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
class Transfers : public host::TransferBase<RegionRecord> {
 public:
  // Queues a read or write in pieces of at most `chunk` bytes, unless Check() refuses it.
  Status Begin(bool write, const RemoteSpan& span, char* local, void* descriptor, uint64_t cookie,
               uint64_t chunk);
  // The next piece of a write, or of a read; null if there is none.
  const Piece* FrontWrite() const { return writes_.empty() ? nullptr : &writes_.front(); }
  const Piece* FrontRead() const { return reads_.empty() ? nullptr : &reads_.front(); }
  // The next piece was started, a write as number started() + 1.
  void PopWrite();
  void PopRead() { reads_.pop_front(); }
  // A piece has ended: `sequence` is 0 for that of a read.
  void OnEnded(uint64_t transfer, uint64_t sequence);
  // Discards what has not been started.
  void Drop() {
    writes_.clear();
    reads_.clear();
  }

  // Pieces of writes that were queued so far, that were started, and the first of these that has
  // not ended.
  uint64_t begun() const { return started_ + writes_.size(); }
  uint64_t started() const { return started_; }
  uint64_t first_unfinished() const { return finished_.AllTo() + 1; }

 private:
  struct Transfer {
    uint64_t cookie;
    uint64_t left;  // pieces
  };

  std::deque<Piece> writes_;
  std::deque<Piece> reads_;
  std::map<uint64_t, Transfer> transfers_;
  Arrivals finished_;  // pieces of writes, by number
  uint64_t last_transfer_ = 0;
  uint64_t started_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
