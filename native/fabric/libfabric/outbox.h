// The outgoing half of a channel's stream: a row of records that is cut into messages, which are
// counted until the peer has read them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// Thread-compatible; guarded by the channel's lock.
class Outbox {
 public:
  // Sets how many messages the peer takes. Call it first.
  void Attach(uint32_t frames) { frames_ = frames; }

  // Adds a record. `number` is the sequence number of a notification, 0 for other records; `writes`
  // is the number of writes that must be there before it is read. Fails as CheckQueue() does, and
  // with InvalidArgument if the record is too long.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, uint64_t writes);
  // All that was added may leave, even if it does not fill a message.
  void Close() { closed_ = Unsent(); }

  // The records, or parts of them, in the next message, and the writes that these wait for. Empty
  // if there is none, or the peer must read others first.
  std::string_view Front() const;
  uint64_t FrontAfter() const;
  // It has left, as number last_posted().
  void Pop();

  // The peer has read the messages up to this one. Returns false if they have not been sent.
  bool OnConfirmed(uint64_t sequence);
  // The peer has read all notifications up to this number.
  uint64_t delivered() const { return delivered_; }

  // Of the messages that have left, the last one, and the first that is not confirmed, or 0.
  uint64_t last_posted() const { return posted_; }
  uint64_t first_unconfirmed() const { return sent_.empty() ? 0 : posted_ + 1 - sent_.size(); }

  bool HasOpen() const { return Unsent() > closed_; }
  bool Idle() const { return Unsent() == 0 && sent_.empty(); }
  // Whether the peer should confirm the next message soon: few more may follow.
  bool WantsConfirmation() const {
    return backlog().waiting_bytes > 0 || (sent_.size() + 1) * 4 >= frames_ * 3;
  }
  Backlog backlog() const;
  // Discards what has not been sent.
  void Drop();

 private:
  struct Record {
    uint64_t end;  // in the stream
    uint64_t number;
    uint64_t writes;
  };

  size_t Unsent() const { return bytes_.size() - gone_; }

  uint32_t frames_ = 0;
  std::string bytes_;           // of the stream
  size_t gone_ = 0;             // of these, those that have left
  size_t closed_ = 0;           // of the others, those that may
  uint64_t position_ = 0;       // in the stream, of the first one that has not left
  std::deque<Record> records_;  // whose ends have not left
  std::deque<uint64_t> sent_;  // of each unconfirmed message, the last number that ends in it, or 0
  uint64_t posted_ = 0;
  uint64_t delivered_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
