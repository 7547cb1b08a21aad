// The ring into which the peer of a channel writes its notifications. It begins small and grows
// when the peer asks for more room.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "fabric/host/region.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// The key of the first ring's windows, which is not that of any region.
constexpr uint64_t kRingKey = ~uint64_t{0};

// Used only by the polling thread once the channel connects.
class Inbox {
 public:
  // The memory of a ring.
  struct Ring {
    std::unique_ptr<host::MemoryRegion> memory;
    Registrations registrations;  // by port; of the first ring once the channel connects
    uint64_t key = 0;             // of its windows; not that of any region

    size_t size() const { return memory->length(); }
  };

  // Allocates the first ring, which may grow to `limit` bytes. `most_batches` is how many batches
  // the peer may send before it gets credits.
  Status Open(uint64_t limit, uint32_t most_batches);

  const Ring& ring() const { return ring_; }
  // Constant after Open().
  uint64_t first_size() const { return std::min(kFirstRing, limit_); }
  uint64_t limit() const { return limit_; }

  // Sets the registrations of the first ring.
  void set_registrations(Registrations registrations) {
    ring_.registrations = std::move(registrations);
  }
  // Registers a ring with one more port, unless it is registered there.
  Status Register(Adapter* adapter, bool next);
  // Ends the access of peers to all rings. Destroy their windows before.
  void Close() { ring_.registrations = next_.registrations = {}; }

  // Allocates a ring of this size, in which the peer may go on, and registers it with these ports,
  // which are in the order of their indexes, or null; with all but `main` if possible. Returns
  // DataLoss if the peer may not ask for that, ResourceExhausted if the memory is missing.
  Status Grow(const std::vector<Adapter*>& adapters, size_t main, uint64_t size);
  // Of the last successful Grow().
  const Ring& next() const { return next_; }
  // The peer goes on in the next ring, and never writes to the old one again. Returns DataLoss if
  // there is no next one.
  Status TakeNext(Ring* old);
  // Gives up the next ring, which the peer was not told of.
  void DropNext() { next_ = Ring(); }

  // See RingReader.
  Status Begin(const Immediate& batch) { return reader_.Begin(batch); }
  Status Next(RecordKind* kind, std::string_view* record, bool* more) {
    return reader_.Next(kind, record, more);
  }
  bool TakeCredit(Immediate* credit) { return reader_.TakeCredit(credit); }

 private:
  static Status Expose(Adapter* adapter, Ring* ring);

  uint64_t limit_ = 0;
  Ring ring_;
  Ring next_;
  RingReader reader_;
};

}  // namespace rdma_transport::fabric::verbs
