// What the threads of a device sleep on: an epoll descriptor with an eventfd, a timer, and
// descriptors of the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/status.h"
#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::host {

// Any thread may call Sleep(), Wake() and WakeAfter(). Call the rest from the polling thread, or
// before the device is shared between threads.
class Sleeper {
 public:
  // Makes the descriptors; call it first. Returns an error if the process or the host has no more.
  Status Init();
  // Adds a descriptor of the caller, which ends all sleeps while it is readable. Returns an error
  // if the host has no memory for it.
  Status Watch(int fd);
  // Adds a descriptor that ends no sleep until WatchOnce().
  Status Add(int fd);
  // When such a descriptor is readable, it ends one sleep, or the next one, and then no other.
  void WatchOnce(int fd);
  // Undoes WatchOnce().
  void Unwatch(int fd);
  // Ends a sleep in `interval` nanoseconds from `now`, unless the timer already expires earlier.
  void WakeAfter(Nanos now, Nanos interval);

  // As in Device. What Wake(), WakeAfter() and Watch() bring about ends all sleeps until it has
  // been read.
  void Sleep(Nanos deadline);
  void Wake();
  // Returns whether a sleep has ended early since the last Clear().
  bool woken() const { return woken_.load(std::memory_order_relaxed) != 0; }
  // Resets eventfd and timer if they have ended a sleep since the last call. Returns whether a
  // descriptor of Watch() has; reading that one is up to the caller.
  bool Clear();
  // As Device::WaitDescriptor().
  int descriptor() const { return epoll_.get(); }

 private:
  static constexpr uint32_t kByWake = 1;
  static constexpr uint32_t kByTimer = 2;
  static constexpr uint32_t kByWatched = 4;

  Status Control(int operation, int fd, uint32_t events);

  FileDescriptor epoll_;
  FileDescriptor wake_;
  FileDescriptor timer_;
  std::atomic<uint32_t> woken_{0};  // what ended sleeps: the flags above
  std::mutex timer_mu_;
  Nanos timer_due_ = 0;  // guarded by timer_mu_
};

}  // namespace rdma_transport::fabric::host
