// The outgoing records of a channel. They are gathered into batches, and queued while the peer's
// ring has no room.
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
#include "fabric/host/parts.h"
#include "fabric/host/region.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/ring.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// Thread-compatible; guarded by the channel's lock.
class Outbox {
 public:
  // Passes each closed batch and each credit to `push`, in order.
  explicit Outbox(std::function<void(const Work&)> push) : push_(std::move(push)) {}

  // Allocates the memory from which the peer's ring is written. Call it first. The adapter must
  // outlive the outbox.
  Status Attach(Adapter* adapter, const ChannelAddress& peer);

  // Adds a record to the open batch, or queues it until there is room. `number` is the sequence
  // number of a notification, 0 for other records. A notification may be longer than a record, and
  // is then added in parts. Fails as CheckQueue() does, and with InvalidArgument if it is too long.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  // Returns the number up to which all notifications have been written to the peer's ring.
  uint64_t Delivered() const { return written_; }
  // Closes the open batch, unless the peer has no receive left for it.
  void Close();
  // Returns room in this side's ring to the peer, which writes it.
  void SendCredit(const Immediate& credit);

  // The peer's credit, or the completion of a batch, makes room.
  Status OnCredit(const Immediate& credit);
  void OnWritten(const Work& batch);

  bool WaitsForRoom() const { return !waiting_.empty() || writer_.HasOpenBatch(); }
  bool AllWritten() const { return waiting_.empty() && writer_.AllWritten(); }
  Backlog backlog() const {
    return {writer_.size(), writer_.Used(), waiting_bytes_, host::kLongestNotification};
  }
  // Discards the queued records.
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
  void Keep(RecordKind kind, std::string bytes, uint64_t number, bool signaled);
  void Refill();

  const std::function<void(const Work&)> push_;
  // The source of all writes to the peer's ring, at equal offsets.
  std::unique_ptr<host::MemoryRegion> mirror_;
  std::unique_ptr<Registration> registration_;
  uint64_t ring_ = 0;  // the peer's, as its card knows it
  uint32_t ring_key_ = 0;
  RingWriter writer_;
  uint64_t last_number_ = 0;  // the highest of a notification in the ring
  uint64_t written_ = 0;      // the highest of one that was written
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
