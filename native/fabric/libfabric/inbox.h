// The incoming half of a channel's stream: puts messages in order, waits for the writes that
// precede them, and takes the records out.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/arrivals.h"
#include "base/clock.h"
#include "base/status.h"
#include "fabric/host/parts.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// Not thread-safe: belongs to the polling thread. Trusts nothing that it reads.
class Inbox {
 public:
  using Handle = std::function<Status(RecordKind kind, std::string_view record)>;

  // `frames` is how many messages the peer may send before any is confirmed.
  explicit Inbox(uint32_t frames) : frames_(frames) {}

  // Takes a message of the stream, and calls `handle` for each record that is complete now, in
  // order. Returns the first error of `handle`, or DataLoss if the content is not valid; nothing
  // may be taken afterwards.
  Status Take(const MessageHeader& header, std::string_view bytes, Nanos now, const Handle& handle);
  // The peer has sent the messages up to this one.
  Status Expect(uint64_t sequence, Nanos now);
  // The write with these 16 bits of its sequence has arrived.
  Status TakeWrite(uint16_t sequence, Nanos now, const Handle& handle);

  uint64_t read() const { return read_; }               // messages read so far
  uint64_t arrived() const { return writes_.AllTo(); }  // all writes up to this one have arrived
  // Since when a message is known to be missing, or waits for a write; or 0.
  Nanos waiting_since() const { return held_.empty() && expected_ <= read_ ? 0 : waiting_since_; }

 private:
  struct Held {
    uint64_t writes;
    std::string bytes;
  };

  Status Feed(std::string_view bytes, const Handle& handle);
  Status ReadHeld(Nanos now, const Handle& handle);

  const uint32_t frames_;
  uint64_t read_ = 0;
  uint64_t expected_ = 0;  // all messages up to this one must come
  Arrivals writes_;
  std::map<uint64_t, Held> held_;  // messages that came too early, by sequence
  Nanos waiting_since_ = 0;
  host::PartJoiner parts_;  // of a record
};

}  // namespace rdma_transport::fabric::libfabric
