// The one-sided operations of a channel.
#pragma once

#include <cstdint>
#include <deque>

#include "base/arrivals.h"
#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/transfer_base.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// Thread-compatible; guarded by the channel's lock.
class Transfers : public host::TransferBase<RegionRecord> {
 public:
  // A read or write that is not yet started.
  struct Waiting {
    char* local = nullptr;
    void* descriptor = nullptr;
    uint64_t length = 0;
    uint64_t address = 0;
    uint64_t key = 0;
    uint64_t cookie = 0;
  };

  // Queues a read or write, unless Check() refuses it.
  Status Begin(bool write, const RemoteSpan& span, char* local, void* descriptor, uint64_t cookie);
  // The next write, or read; null if there is none.
  const Waiting* FrontWrite() const { return writes_.empty() ? nullptr : &writes_.front(); }
  const Waiting* FrontRead() const { return reads_.empty() ? nullptr : &reads_.front(); }
  // It was started, a write as number started() + 1.
  void PopWrite();
  void PopRead() { reads_.pop_front(); }
  // An operation has ended: `sequence` is 0 for a read.
  void OnEnded(uint64_t cookie, uint64_t sequence);
  // Discards what has not been started.
  void Drop() {
    writes_.clear();
    reads_.clear();
  }

  // Writes that were queued so far, that were started, and the first of these that has not ended.
  uint64_t begun() const { return started_ + writes_.size(); }
  uint64_t started() const { return started_; }
  uint64_t first_unfinished() const { return finished_.AllTo() + 1; }

 private:
  std::deque<Waiting> writes_;
  std::deque<Waiting> reads_;
  Arrivals finished_;  // writes, by number
  uint64_t started_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
