// The ring of notifications seen from both ends: who may write where, and what may be written anew.
// Pure bookkeeping over memory; nothing here knows libibverbs.
//
// Positions count bytes since the beginning. Both ends count the same, also what is skipped at the
// end of the ring, where a batch does not fit any more.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "fabric/verbs/wire.h"

namespace rdma_transport::fabric::verbs {

// A closed batch, to be written to `offset` of the peer's ring from the same offset of the mirror.
struct Batch {
  uint64_t offset = 0;
  uint32_t length = 0;
  uint32_t immediate = 0;
  uint64_t end = 0;          // position behind it
  uint64_t last_number = 0;  // of the last notification in it
  bool signaled = false;     // somebody wants to know when it has arrived
};

// The sender's end. Not thread-safe.
class RingWriter {
 public:
  // `mirror`: memory of `size` bytes, the source of all writes.
  void Attach(char* mirror, uint64_t size, uint32_t most_batches);

  size_t LargestRecord() const { return std::min(size_ / 8 * 3, kMaxUnits * kUnit) - 2 * kUnit; }

  enum class Room { kTaken, kFull, kCloseFirst };
  // Adds a record to the open batch, beginning one if there is none. Nothing is added unless
  // kTaken: kFull, until credits or completions come; kCloseFirst, until the open batch is closed.
  Room Append(RecordKind kind, const iovec* parts, int count, size_t length);
  // Of the record that Append() took just now.
  void Mark(uint64_t number, bool signaled);

  bool HasOpenBatch() const { return open_; }
  // False: there is nothing to send, or the peer has no receive left for it.
  bool Close(Batch* batch);

  // The peer consumed that much. DataLoss: more than it was sent.
  Status OnCredit(const Immediate& credit);
  // The write of a batch ended: the mirror up to `end` may change.
  void OnWritten(uint64_t end) { written_ = end; }
  bool AllWritten() const { return !open_ && written_ == tail_; }
  uint64_t size() const { return size_; }
  // Bytes that may not be written anew yet.
  uint64_t Used() const;

 private:
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

// The receiver's end. Not thread-safe. Distrusts what it finds.
class RingReader {
 public:
  void Attach(const char* ring, uint64_t size, uint32_t most_batches);

  // A batch has come. Next() then yields its records, until `*more` is false.
  Status Begin(const Immediate& batch);
  Status Next(RecordKind* kind, std::string_view* record, bool* more);
  // When enough was consumed that the peer should hear of it.
  bool TakeCredit(Immediate* credit);

 private:
  const char* ring_ = nullptr;
  uint64_t size_ = 0;
  uint32_t most_batches_ = 0;
  uint64_t head_ = 0;  // where the next batch begins
  uint64_t credited_ = 0;
  uint32_t batches_ = 0;  // consumed since the last credit
  const char* record_ = nullptr;
  const char* end_ = nullptr;
};

}  // namespace rdma_transport::fabric::verbs
