#include "fabric/shm/ring.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "fabric/host/memory_file.h"

namespace rdma_transport::fabric::shm {
namespace {

constexpr size_t kMappedLength = kRingCapacity + kRingFileLength;
constexpr size_t kLengthField = 8;  // keeps records aligned to 8

constexpr size_t RecordSize(size_t length) { return (kLengthField + length + 7) / 8 * 8; }

}  // namespace

RingMapping::~RingMapping() {
  if (base_ != nullptr) munmap(base_, kMappedLength);
}

Status RingMapping::Map(int fd) {
  void* reserved =
      mmap(nullptr, kMappedLength, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return StatusFromErrno(errno, "reserving address space for a ring");
  base_ = static_cast<char*>(reserved);
  const auto map = [fd](char* address, size_t length) {
    return mmap(address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  };
  if (map(base_, kRingCapacity) == MAP_FAILED ||
      map(base_ + kRingCapacity, kRingFileLength) == MAP_FAILED) {
    return StatusFromErrno(errno, "mapping a ring");
  }
  return OkStatus();
}

Status RingConsumer::Create() {
  RDMA_RETURN_IF_ERROR(host::CreateMemoryFile("rdma_transport_ring", kRingFileLength, &file_));
  return mapping_.Map(file_.get());
}

bool RingConsumer::Empty() const {
  return mapping_.header()->tail.load(std::memory_order_acquire) == head_;
}

Status RingConsumer::Peek(const char** data, size_t* length) {
  *data = nullptr;
  const uint64_t available = mapping_.header()->tail.load(std::memory_order_acquire) - head_;
  if (available == 0) return OkStatus();
  const Status broken(Code::kDataLoss, "the peer wrote nonsense into its notification ring");
  if (available > kRingCapacity || available < kLengthField) return broken;
  const char* record = mapping_.data() + head_ % kRingCapacity;
  uint64_t stated = 0;
  std::memcpy(&stated, record, sizeof(stated));
  if (stated > kMaxRecord || RecordSize(stated) > available) return broken;
  record_size_ = RecordSize(stated);
  *data = record + kLengthField;
  *length = stated;
  return OkStatus();
}

void RingConsumer::Pop() {
  head_ += record_size_;
  // Store `taken` first: a producer that sees the room must see the record as taken.
  mapping_.header()->taken.store(++taken_, std::memory_order_release);
  mapping_.header()->head.store(head_, std::memory_order_release);
}

bool RingConsumer::TakeProducerWaits() {
  // Orders the store of `head` before the load. Pairs with WaitForRoom().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto& waits = mapping_.header()->producer_waits;
  return waits.load(std::memory_order_relaxed) != 0 && waits.exchange(0) != 0;
}

bool RingProducer::TakeConsumerSleeps() {
  // Orders the store of `tail` before the load of the flag. Pairs with RaiseFlag().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  auto& asleep = mapping_.header()->asleep;
  return asleep.load(std::memory_order_relaxed) != 0 && asleep.exchange(0) != 0;
}

uint64_t RingProducer::Used() const {
  return tail_ - mapping_.header()->head.load(std::memory_order_acquire);
}

bool RingProducer::Push(const iovec* parts, int count, size_t length) {
  const size_t size = RecordSize(length);
  const uint64_t used = Used();
  if (used > kRingCapacity || size > kRingCapacity - used) return false;
  char* out = mapping_.data() + tail_ % kRingCapacity;
  const uint64_t stated = length;
  std::memcpy(out, &stated, sizeof(stated));
  out += kLengthField;
  for (int i = 0; i < count; ++i) {
    if (parts[i].iov_len == 0) continue;
    std::memcpy(out, parts[i].iov_base, parts[i].iov_len);
    out += parts[i].iov_len;
  }
  tail_ += size;
  mapping_.header()->tail.store(tail_, std::memory_order_release);
  return true;
}

void RingProducer::WaitForRoom() {
  mapping_.header()->producer_waits.store(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace rdma_transport::fabric::shm
