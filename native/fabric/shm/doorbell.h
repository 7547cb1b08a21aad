// How one process wakes another: a flag in shared memory that says "asleep", and an eventfd that is
// written only while the flag is up, so that a busy pair of processes makes no system call.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::shm {

struct DoorbellPage {
  std::atomic<uint32_t> asleep;
};
constexpr size_t kDoorbellLength = 4096;

class Doorbell {
 public:
  Doorbell() = default;
  ~Doorbell();
  Doorbell(const Doorbell&) = delete;
  Doorbell& operator=(const Doorbell&) = delete;

  Status Create();                                                       // the sleeper's end
  Status Attach(host::FileDescriptor page, host::FileDescriptor event);  // a ringer's end

  int page_fd() const { return page_file_.get(); }
  int event_fd() const { return event_.get(); }

  void Ring();
  // Wakes the sleeper even where the flag is not up: for use within one process.
  void RingAlways();
  bool Asleep() const { return page_->asleep.load() != 0; }

  // The sleeper raises the flag, looks once more for work, and only then sleeps on event_fd().
  void RaiseFlag() { page_->asleep.store(1); }
  void LowerFlag() { page_->asleep.store(0, std::memory_order_relaxed); }
  void Drain();

 private:
  Status MapPage();

  host::FileDescriptor page_file_;
  host::FileDescriptor event_;
  DoorbellPage* page_ = nullptr;
};

}  // namespace rdma_transport::fabric::shm
