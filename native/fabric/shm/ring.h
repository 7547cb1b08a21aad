// A one-way queue of records between two processes: one producer, one consumer, no locks.
//
// The consumer makes the ring and may distrust what it finds in it: every length is checked, and a
// ring that breaks the rules is an error, not a crash. Records never wrap, because the data pages
// are mapped twice in a row.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::shm {

constexpr size_t kRingCapacity = size_t{256} << 10;
constexpr size_t kRingFileLength = kRingCapacity + 4096;
// Keeps a record small beside the ring, so that a few always fit.
constexpr size_t kMaxRecord = kRingCapacity / 2 - 64;

// The first page. Producer and consumer each write a cache line of their own.
struct RingHeader {
  alignas(64) std::atomic<uint64_t> tail;  // bytes ever produced; written by the producer
  alignas(64) std::atomic<uint64_t> head;  // bytes ever consumed; written by the consumer
  std::atomic<uint64_t> taken;             // records ever consumed; written by the consumer
  std::atomic<uint32_t> asleep;            // the consumer must be woken; the producer lowers it
  alignas(64) std::atomic<uint32_t> producer_waits;
};

class RingMapping {
 public:
  RingMapping() = default;
  ~RingMapping();
  RingMapping(const RingMapping&) = delete;
  RingMapping& operator=(const RingMapping&) = delete;

  Status Map(int fd);
  RingHeader* header() const { return reinterpret_cast<RingHeader*>(base_); }
  char* data() const { return base_ + 4096; }

 private:
  char* base_ = nullptr;
};

class RingConsumer {
 public:
  // Makes the ring; `fd()` is for the producer.
  Status Create();
  int fd() const { return file_.get(); }
  void CloseFile() { file_.Reset(); }

  bool Empty() const;
  // The oldest record, valid until Pop(). OK with *data null: nothing there.
  Status Peek(const char** data, size_t* length);
  void Pop();
  // Call after a batch of Pop(): whether the producer sleeps on the room that was made.
  bool TakeProducerWaits();
  // Bytes ever consumed.
  uint64_t consumed() const { return head_; }

  // The consumer raises its flag, looks once more for records, and only then sleeps.
  void RaiseFlag() { mapping_.header()->asleep.store(1); }
  void LowerFlag() { mapping_.header()->asleep.store(0, std::memory_order_relaxed); }

 private:
  host::FileDescriptor file_;
  RingMapping mapping_;
  uint64_t head_ = 0;
  uint64_t taken_ = 0;
  uint64_t record_size_ = 0;
};

class RingProducer {
 public:
  Status Attach(int fd) { return mapping_.Map(fd); }

  // Appends one record; false: no room now.
  bool Push(const iovec* parts, int count, size_t length);
  // Asks the consumer to ring when there is room again. Try Push() once more afterwards.
  void WaitForRoom();
  // Bytes that the consumer has not taken.
  uint64_t Used() const;
  // Records that the consumer says it has taken.
  uint64_t Taken() const { return mapping_.header()->taken.load(std::memory_order_acquire); }
  // Call after a Push(): whether the consumer sleeps and must be woken, which one caller learns.
  bool TakeConsumerSleeps();

 private:
  RingMapping mapping_;
  uint64_t tail_ = 0;
};

}  // namespace rdma_transport::fabric::shm
