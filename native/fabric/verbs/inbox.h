// The ring into which the peer of a channel writes its notifications.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "fabric/host/parts.h"
#include "fabric/host/region.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Used only by the polling thread once the channel connects.
class Inbox {
 public:
  // Allocates and registers a ring of `size` bytes. `most_batches` is how many batches the peer may
  // send before it gets credits.
  Status Open(Adapter* adapter, uint64_t size, uint32_t most_batches);
  const std::shared_ptr<Registration>& ring() const { return registration_; }
  // Ends the access of the peer.
  void Close() { registration_.reset(); }

  // See RingReader.
  Status Begin(const Immediate& batch) { return reader_.Begin(batch); }
  Status Next(RecordKind* kind, std::string_view* record, bool* more) {
    return reader_.Next(kind, record, more);
  }
  bool TakeCredit(Immediate* credit) { return reader_.TakeCredit(credit); }

  // Of notifications that came in parts.
  host::PartJoiner& parts() { return parts_; }

 private:
  std::unique_ptr<host::MemoryRegion> memory_;
  std::shared_ptr<Registration> registration_;
  RingReader reader_;
  host::PartJoiner parts_;
};

}  // namespace rdma_transport::fabric::verbs
