// The outgoing half of a channel's stream: records are gathered into messages, which are counted
// until the peer has read them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/status.h"
#include "fabric/fabric.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// Thread-compatible; guarded by the channel's lock.
class Outbox {
 public:
  struct Message {
    std::string records;
    uint64_t number = 0;  // the last notification that ends in it, or 0
    uint64_t writes = 0;  // that must be there before it is read
  };

  // Sets how many messages the peer takes. Call it first.
  void Attach(uint32_t frames) { frames_ = frames; }

  // Adds a record, in parts if it is longer than a message. `number` is the sequence number of a
  // notification, 0 for other records; `writes` is the number of writes that must be there before
  // it is read. Fails as CheckQueue() does, and with InvalidArgument if the record is too long.
  Status Add(RecordKind kind, const iovec* parts, int count, uint64_t number, uint64_t writes);
  // All that was added may leave, even if it does not fill a message.
  void Close() { open_ = false; }

  // The next message. Null if there is none, or the peer must read others first.
  const Message* Front() const;
  // It has left, as number last_posted().
  void Pop();

  // The peer has read the messages up to this one. Returns false if they have not been sent.
  bool OnConfirmed(uint64_t sequence);
  // The peer has read all notifications up to this number.
  uint64_t delivered() const { return delivered_; }

  // Of the messages that have left, the last one, and the first that is not confirmed, or 0.
  uint64_t last_posted() const { return posted_; }
  uint64_t first_unconfirmed() const { return sent_.empty() ? 0 : posted_ + 1 - sent_.size(); }

  bool HasOpen() const { return open_; }
  bool Idle() const { return waiting_.empty() && sent_.empty(); }
  // Whether the peer should confirm the next message soon: few more may follow.
  bool WantsConfirmation() const {
    return waiting_.size() > Left() || (sent_.size() + 1) * 4 >= frames_ * 3;
  }
  Backlog backlog() const;
  // Discards what has not been sent.
  void Drop();

 private:
  void Append(RecordKind kind, const char* data, size_t length, uint64_t number, uint64_t writes);
  size_t Left() const { return frames_ - sent_.size(); }  // messages that the peer takes now

  uint32_t frames_ = 0;
  std::deque<Message> waiting_;
  size_t waiting_bytes_ = 0;
  bool open_ = false;          // the last of them may not leave yet
  std::deque<uint64_t> sent_;  // the numbers of the messages that are not confirmed
  uint64_t posted_ = 0;
  uint64_t delivered_ = 0;
};

}  // namespace rdma_transport::fabric::libfabric
