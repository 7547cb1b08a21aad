// The ring into which the peer of a channel writes its notifications. It begins small and grows
// when the peer asks for more room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "fabric/host/region.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Used only by the polling thread once the channel connects. The channel's lock also guards what
// the address of the channel shows: it is held during Open() and TakeNext().
class Inbox {
 public:
  // The memory of a ring.
  struct Ring {
    std::unique_ptr<host::MemoryRegion> memory;
    std::shared_ptr<Registration> registration;
    uint64_t key = 0;  // of its windows; not the key of any region

    size_t size() const { return memory->length(); }
  };

  // Allocates the first ring, which may grow to `limit` bytes. `most_batches` is how many batches
  // the peer may send before it gets credits.
  Status Open(Adapter* adapter, uint64_t limit, uint32_t most_batches);

  const Ring& ring() const { return ring_; }
  uint64_t limit() const { return limit_; }

  // Allocates a ring of this size, in which the peer may go on. Returns DataLoss if the peer may
  // not ask for that, ResourceExhausted if the memory is missing.
  Status Grow(Adapter* adapter, uint64_t size);
  // Of the last successful Grow().
  const Ring& next() const { return next_; }
  // The peer goes on in the next ring, and never writes to this one again. Returns the key of the
  // old one's windows, or DataLoss if there is no next one.
  Status TakeNext(uint64_t* old_key);
  // Gives up the next ring, which the peer was not told of.
  void DropNext() { next_ = Ring(); }

  // See RingReader.
  Status Begin(const Immediate& batch) { return reader_.Begin(batch); }
  Status Next(RecordKind* kind, std::string_view* record, bool* more) {
    return reader_.Next(kind, record, more);
  }
  bool TakeCredit(Immediate* credit) { return reader_.TakeCredit(credit); }

 private:
  static Status Allocate(Adapter* adapter, uint64_t size, Ring* ring);

  uint64_t limit_ = 0;
  Ring ring_;
  Ring next_;
  RingReader reader_;
};

}  // namespace rdma_transport::fabric::verbs
