// The outgoing half of a channel's stream: records are gathered into messages, which are kept in
// order and counted until the peer has read them.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <string>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/domain.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// A message of the stream, whose header the channel fills in.
struct OutgoingMessage {
  Frame frame;
  size_t length = 0;  // with its header, in bytes
  uint64_t sequence = 0;
  uint64_t after = 0;  // writes of the channel that were started before it
};

// Thread-compatible; guarded by the channel's lock.
class Outbox {
 public:
  explicit Outbox(Domain* domain) : domain_(domain) {}
  ~Outbox() { Drop(); }

  // Sets how many messages the peer takes. Call it first.
  void Attach(uint32_t frames) { frames_ = frames; }

  // Adds a record to the open message and to further ones, or queues it until the peer has read
  // enough. `number` is the sequence number of a notification, 0 for other records; `writes` is the
  // number of writes started so far. Fails as CheckQueue() does, and with InvalidArgument if the
  // record is too long.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, uint64_t writes);
  // Returns InvalidArgument if Add() would for a record of this length.
  Status CheckLength(size_t length) const;
  // The notification with this number is added later than the next ones.
  void Delay(uint64_t number) { delayed_[number] = kNotAdded; }
  // Closes the open message.
  void Close();
  // Tries again to take what is queued.
  void Retry();

  // The next message to send, or null. Pop() removes it; its frame belongs to the caller then.
  OutgoingMessage* Front() { return closed_.empty() ? nullptr : &closed_.front(); }
  void Pop() { closed_.pop_front(); }

  // The peer has read the messages up to this one. Returns false if they have not been sent.
  bool OnConfirmed(uint64_t sequence);
  // The peer has read all notifications up to this number.
  uint64_t delivered() const {
    return delayed_.empty() ? delivered_ : std::min(delivered_, delayed_.begin()->first - 1);
  }

  // Of the messages that have left, the last one, and the first that is not confirmed, or 0.
  uint64_t last_posted() const {
    return closed_.empty() ? last_sequence_ : closed_.front().sequence - 1;
  }
  uint64_t first_unconfirmed() const {
    return sent_.empty() || sent_.front().sequence > last_posted() ? 0 : sent_.front().sequence;
  }

  bool HasOpen() const { return open_.frame.data != nullptr; }
  bool Idle() const { return closed_.empty() && !HasOpen() && waiting_.empty() && sent_.empty(); }
  // Whether the peer should confirm soon: a quarter of its messages, at most, are left.
  bool WantsConfirmation() const { return !waiting_.empty() || Unread() * 4 >= frames_ * 3; }
  Backlog backlog() const;
  // Discards what has not been sent.
  void Drop();

 private:
  static constexpr uint64_t kNotAdded = ~uint64_t{0};

  struct Waiting {
    RecordKind kind;
    std::string bytes;
    uint64_t number;
    uint64_t writes;
  };
  struct Sent {
    uint64_t sequence;
    uint64_t number;  // the highest one of a notification that ends in it or earlier
  };

  uint64_t Unread() const { return sent_.size() + (HasOpen() ? 1 : 0); }
  bool Fits(size_t length) const;
  bool Append(RecordKind kind, const iovec* parts, int count, size_t length, uint64_t number,
              uint64_t writes);

  Domain* const domain_;
  uint32_t frames_ = 0;
  OutgoingMessage open_;
  std::deque<OutgoingMessage> closed_;
  std::deque<Sent> sent_;  // closed, and not confirmed
  uint64_t last_sequence_ = 0;
  uint64_t last_number_ = 0;
  uint64_t delivered_ = 0;
  // The message in which each notification of Delay() ends, until the peer has read it.
  std::map<uint64_t, uint64_t> delayed_;
  std::deque<Waiting> waiting_;
  size_t waiting_bytes_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
