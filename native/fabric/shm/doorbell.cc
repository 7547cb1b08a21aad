#include "fabric/shm/doorbell.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fabric/host/memory_file.h"

namespace rdma_transport::fabric::shm {

Doorbell::~Doorbell() {
  if (page_ != nullptr) munmap(page_, kDoorbellLength);
}

Status Doorbell::MapPage() {
  void* page =
      mmap(nullptr, kDoorbellLength, PROT_READ | PROT_WRITE, MAP_SHARED, page_file_.get(), 0);
  if (page == MAP_FAILED) return StatusFromErrno(errno, "mapping a doorbell");
  page_ = static_cast<DoorbellPage*>(page);
  return OkStatus();
}

Status Doorbell::Create() {
  RDMA_RETURN_IF_ERROR(
      host::CreateMemoryFile("rdma_transport_doorbell", kDoorbellLength, &page_file_));
  event_ = host::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return StatusFromErrno(errno, "eventfd");
  return MapPage();
}

Status Doorbell::Attach(host::FileDescriptor page, host::FileDescriptor event) {
  RDMA_RETURN_IF_ERROR(host::CheckMemoryFile(page.get(), kDoorbellLength));
  page_file_ = std::move(page);
  event_ = std::move(event);
  RDMA_RETURN_IF_ERROR(MapPage());
  page_file_.Reset();
  return OkStatus();
}

void Doorbell::Ring() {
  // Orders the caller's publication before the look at the flag; pairs with RaiseFlag().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (page_->asleep.load(std::memory_order_relaxed) == 0) return;
  if (page_->asleep.exchange(0) != 0) RingAlways();
}

void Doorbell::RingAlways() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then the sleeper is awake already.
  [[maybe_unused]] const ssize_t written = write(event_.get(), &one, sizeof(one));
}

void Doorbell::Drain() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(event_.get(), &count, sizeof(count));
}

}  // namespace rdma_transport::fabric::shm
