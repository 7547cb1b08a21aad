// A lock-free queue of records between two processes, with one producer and one consumer.
//
// The consumer creates the ring and does not trust its content. It checks every length, and invalid
// content is an error, not a crash. Records never wrap, because the data pages are mapped twice in
// a row.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::shm {

// The file holds the data, then the header. So the data begin at a page whatever the size of pages,
// which is 64 KiB with some kernels for aarch64.
constexpr size_t kRingCapacity = size_t{256} << 10;
constexpr size_t kRingFileLength = kRingCapacity + 4096;
// Limits a record to about half of the ring.
constexpr size_t kMaxRecord = kRingCapacity / 2 - 64;

// Producer and consumer write to separate cache lines.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> tail;  // bytes produced; written by the producer
  alignas(64) std::atomic<uint64_t> head;  // bytes consumed; written by the consumer
  std::atomic<uint64_t> taken;             // records consumed; written by the consumer
  std::atomic<uint32_t> asleep;            // set while the consumer sleeps; the producer clears it
  alignas(64) std::atomic<uint32_t> producer_waits;
};

// A mapping of a ring's file, with the data twice: data | data | header. Unmapped on destruction.
class RingMapping {
 public:
  RingMapping() = default;
  ~RingMapping();
  RingMapping(const RingMapping&) = delete;
  RingMapping& operator=(const RingMapping&) = delete;

  Status Map(int fd);
  RingHeader* header() const { return reinterpret_cast<RingHeader*>(base_ + 2 * kRingCapacity); }
  char* data() const { return base_; }

 private:
  char* base_ = nullptr;
};

// Not thread-safe.
class RingConsumer {
 public:
  // Creates the ring. `fd()` is for the producer.
  Status Create();
  int fd() const { return file_.get(); }
  void CloseFile() { file_.Reset(); }

  bool Empty() const;
  // Returns the oldest record, valid until Pop(). Sets `*data` to null if the ring is empty.
  // Returns an error if the content is not valid.
  Status Peek(const char** data, size_t* length);
  void Pop();
  // Returns whether the producer waits for the room that was made. Call it after a batch of Pop().
  bool TakeProducerWaits();
  // Returns the number of bytes consumed.
  uint64_t consumed() const { return head_; }

  // The consumer raises its flag, checks for records once more, and only then sleeps.
  void RaiseFlag() { mapping_.header()->asleep.store(1); }
  void LowerFlag() { mapping_.header()->asleep.store(0, std::memory_order_relaxed); }

 private:
  host::FileDescriptor file_;
  RingMapping mapping_;
  uint64_t head_ = 0;
  uint64_t taken_ = 0;
  uint64_t record_size_ = 0;
};

// Thread-compatible.
class RingProducer {
 public:
  Status Attach(int fd) { return mapping_.Map(fd); }

  // Appends one record. Returns false if there is no room.
  bool Push(const iovec* parts, int count, size_t length);
  // Requests a wake-up when there is room. Try Push() once more afterwards. The consumer wakes only
  // a producer whose sleep flag it sees: check RoomReported() after raising that, and only then
  // sleep.
  void WaitForRoom();
  // Returns whether the consumer has made room since WaitForRoom().
  bool RoomReported() const { return mapping_.header()->producer_waits.load() == 0; }
  // Returns the number of bytes that the consumer has not consumed.
  uint64_t Used() const;
  // Returns the number of records that the consumer reports as consumed; not trusted.
  uint64_t Taken() const { return mapping_.header()->taken.load(std::memory_order_acquire); }
  // Returns whether the consumer sleeps and must be woken. Returns true to one caller only. Call it
  // after Push().
  bool TakeConsumerSleeps();

 private:
  RingMapping mapping_;
  uint64_t tail_ = 0;
};

}  // namespace rdma_transport::fabric::shm
