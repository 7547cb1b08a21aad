// The bookkeeping of both ends of the ring of notifications: where the sender may write, and which
// bytes may be overwritten. It does not depend on libibverbs.
//
// Positions count bytes since the start. Both ends also count the bytes that are skipped at the end
// of the ring when a batch does not fit.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// A closed batch. It is written to `offset` of the peer's ring from the same offset of the mirror.
struct Batch {
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t immediate = 0;
  uint64_t end = 0;          // position behind the batch
  uint64_t last_number = 0;  // of the last notification in it
  bool signaled = false;     // its arrival must be reported
};

// The sender's end. Thread-compatible.
class RingWriter {
 public:
  // `mirror` has `size` bytes and is the source of all writes.
  void Attach(char* mirror, uint64_t size, uint32_t most_batches);

  // Returns the length of the longest record that fits at any position.
  size_t LargestRecord() const { return std::min(size_ / 8 * 3, kMaxUnits * kUnit) - 2 * kUnit; }

  enum class Room { kTaken, kFull, kCloseFirst };
  // Adds a record to the open batch, or to a new one. Adds nothing and returns kFull until credits
  // or completions arrive, or kCloseFirst until the open batch is closed.
  Room Append(RecordKind kind, const iovec* parts, int count, size_t length);
  // Sets the attributes of the record that Append() has just added.
  void Mark(uint64_t number, bool signaled);

  bool HasOpenBatch() const { return open_; }
  // Returns false if there is nothing to send or the peer has no receive left.
  bool Close(Batch* batch);

  // Handles a credit of the peer. Returns DataLoss if it exceeds what was sent.
  Status OnCredit(const Immediate& credit);
  // The write of a batch has ended, so the mirror may be overwritten up to `end`.
  void OnWritten(uint64_t end) { written_ = end; }
  bool AllWritten() const { return !open_ && written_ == tail_; }
  uint64_t size() const { return size_; }
  // Returns the number of bytes that must not be overwritten yet.
  uint64_t Used() const { return tail_ - FirstUsed(); }

 private:
  // Everything before it may be overwritten.
  uint64_t FirstUsed() const { return std::min(granted_, written_); }

  char* mirror_ = nullptr;
  uint64_t size_ = 0;
  uint32_t most_batches_ = 0;
  bool open_ = false;
  bool wrapped_ = false;
  Batch batch_;
  uint64_t tail_ = 0;
  uint64_t granted_ = 0;
  uint64_t written_ = 0;
  uint64_t batches_sent_ = 0;
  uint64_t batches_granted_ = 0;
};

// The receiver's end. Thread-compatible. Does not trust the content of the ring.
class RingReader {
 public:
  void Attach(const char* ring, uint64_t size, uint32_t most_batches);

  // Starts to read a batch that has arrived. Next() then returns its records until `*more` is
  // false. Both return DataLoss if the content is not valid.
  Status Begin(const Immediate& batch);
  Status Next(RecordKind* kind, std::string_view* record, bool* more);
  // Returns true if enough was consumed to send a credit to the peer.
  bool TakeCredit(Immediate* credit);

 private:
  const char* ring_ = nullptr;
  uint64_t size_ = 0;
  uint32_t most_batches_ = 0;
  uint64_t head_ = 0;  // start of the next batch
  uint64_t credited_ = 0;
  uint32_t batches_ = 0;  // consumed since the last credit
  const char* record_ = nullptr;
  const char* end_ = nullptr;
};

}  // namespace rdma_transport::fabric::verbs
