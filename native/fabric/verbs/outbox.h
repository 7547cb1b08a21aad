// The records of a channel on their way to the peer's ring: they gather in batches, and wait where
// there is no room.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/host/region.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible: the channel's lock guards it.
class Outbox {
 public:
  // `push` gets the write of each batch that is closed and of each credit, in order.
  explicit Outbox(std::function<void(Work)> push) : push_(std::move(push)) {}

  // Before all else: memory to write to the peer's ring from.
  Status Attach(Adapter* adapter, const ChannelAddress& peer);

  // Adds a record to the open batch, or keeps it until there is room. `number`: the notification's
  // place among all, 0 for other records. ResourceExhausted: too much is kept already.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  // Ends the open batch, unless the peer has no receive left for it.
  void Close();
  // Gives the peer room back in the ring that it writes.
  void SendCredit(const Immediate& credit);

  // Word of the peer, and of the card, that gives room.
  Status OnCredit(const Immediate& credit);
  void OnWritten(const Work& batch);

  bool WaitsForRoom() const { return !waiting_.empty() || writer_.HasOpenBatch(); }
  bool AllWritten() const { return waiting_.empty() && writer_.AllWritten(); }
  Backlog backlog() const { return {writer_.size(), writer_.Used(), waiting_bytes_}; }
  // What waits is not sent any more.
  void Drop();

 private:
  struct Waiting {
    RecordKind kind;
    std::string bytes;
    uint64_t number;
    bool signaled;
  };

  bool Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
              bool signaled);
  Status Keep(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
              bool signaled);
  void Refill();

  const std::function<void(Work)> push_;
  // The source of all writes to the peer's ring, at the same offsets.
  std::unique_ptr<host::MemoryRegion> mirror_;
  std::unique_ptr<Registration> registration_;
  RingWriter writer_;
  uint64_t peer_ring_ = 0;
  uint32_t peer_rkey_ = 0;
  uint64_t last_number_ = 0;  // of a notification in the ring
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
