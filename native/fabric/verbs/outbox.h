// The outgoing records of a channel. They are gathered into batches, and queued while the peer's
// ring has no room. A ring that lacks room is exchanged for a larger one, as far as the peer allows
// it.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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

// Thread-compatible; guarded by the channel's lock.
class Outbox {
 public:
  // Passes each closed batch and each credit to `push`, in order.
  explicit Outbox(std::function<void(Work)> push) : push_(std::move(push)) {}

  using Ends = std::array<RegionEnd, kMaxQueuePairs>;  // by queue pair

  // Allocates the memory from which the peer's ring is written. Call it first. The adapters must
  // outlive the outbox. `ends`: how each queue pair reaches the ring. Queue pair `index` writes it,
  // through `adapter`.
  Status Attach(Adapter* adapter, const ChannelAddress& peer, const Ends& ends, size_t index);

  // Returns whether this queue pair reaches the peer's rings.
  bool Reaches(size_t index) const;
  // Goes on through another queue pair, which must reach the rings. What was pushed before must be
  // aimed at them again.
  Status MoveTo(Adapter* adapter, size_t index);
  // Aims a batch or a credit, pushed before MoveTo(), at the rings again.
  void Retarget(Work* work) const;
  // What the peer says about the way of a queue pair to the ring of this size.
  void OnRingEnd(uint64_t size, size_t index, const RegionEnd& end);
  // Queue pair `index` no longer reaches any ring.
  void ForgetPair(size_t index);

  // Adds a record to the open batch, or queues it until there is room. `number` is the sequence
  // number of a notification, 0 for other records. Fails as CheckQueue() does, and with
  // InvalidArgument if the record is too long.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  // Returns InvalidArgument if a record of this length can never be added.
  Status Fits(size_t length) const;
  // The notification with this number is added after others with higher numbers.
  void Delay(uint64_t number) { delayed_[number] = kNotAdded; }
  // Returns the number up to which all notifications have been written to the peer's ring.
  uint64_t Delivered() const;
  // Adds the answer to the peer's request for a larger ring. It overtakes what is queued: records
  // there may wait for the peer's own answer.
  void AddRing(std::string record);
  // Closes the open batch, unless the peer has no receive left for it.
  void Close();
  // Returns an empty write with this immediate value.
  Work Empty(const Immediate& immediate) const;
  // Returns room in this side's ring to the peer, which writes it.
  void SendCredit(const Immediate& credit);

  // The peer's answer to a request for a larger ring. Returns DataLoss if there was no such
  // request, ResourceExhausted if a queued record needs the ring and the memory is missing.
  Status OnRing(uint64_t size, const Ends& ends);

  // The peer's credit, or the completion of a batch, makes room.
  Status OnCredit(const Immediate& credit);
  void OnWritten(const Work& batch);

  bool WaitsForRoom() const { return !waiting_.empty() || writer_.HasOpenBatch(); }
  bool AllWritten() const { return waiting_.empty() && writer_.AllWritten(); }
  Backlog backlog() const { return {writer_.size(), writer_.Used(), waiting_bytes_}; }
  // Discards the queued records.
  void Drop();

 private:
  struct Waiting {
    RecordKind kind;
    std::string bytes;
    uint64_t number;
    bool signaled;
  };

  // The memory of the peer's ring, and the source of all writes to it, at equal offsets.
  struct Ring {
    std::unique_ptr<host::MemoryRegion> mirror;
    std::unique_ptr<Registration> registration;
    Ends ends = {};

    uint64_t size() const { return mirror == nullptr ? 0 : mirror->length(); }
    bool Reached(size_t index) const { return mirror == nullptr || ends[index].usable != 0; }
  };

  Status AttachRing(const Ends& ends, uint64_t size, Ring* ring);
  void RequestRing(size_t record);
  bool MoveToNext();
  bool Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
              bool signaled);
  Status Keep(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
              bool signaled);
  void Refill();

  const std::function<void(Work)> push_;
  Adapter* adapter_ = nullptr;
  size_t index_ = 0;  // of the queue pair that writes the rings
  Ring ring_;
  Ring next_;  // a larger one, not used yet
  Ring old_;   // writes from its mirror may be in flight
  RingWriter writer_;
  uint64_t limit_ = 0;        // of the size of rings
  bool requested_ = false;    // a larger ring; the answer has not arrived
  uint64_t last_number_ = 0;  // the highest of a notification in the ring
  uint64_t written_ = 0;      // the highest of one that was written
  // Notifications that were not written before all with higher numbers, and the end in the ring of
  // those that have been added.
  static constexpr uint64_t kNotAdded = ~uint64_t{0};
  std::map<uint64_t, uint64_t> delayed_;
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::verbs
