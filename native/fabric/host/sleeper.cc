#include "fabric/host/sleeper.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

namespace rdma_transport::fabric::host {
namespace {

constexpr int kMaxEvents = 4;

}  // namespace

Status Sleeper::Init() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.valid() || !wake_.valid() || !timer_.valid()) {
    return StatusFromErrno(errno, "epoll_create1, eventfd or timerfd_create");
  }
  RDMA_RETURN_IF_ERROR(Watch(wake_.get()));
  return Watch(timer_.get());
}

Status Sleeper::Control(int operation, int fd, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.fd = fd;
  if (epoll_ctl(epoll_.get(), operation, fd, &event) != 0) {
    return StatusFromErrno(errno, "epoll_ctl");
  }
  return OkStatus();
}

Status Sleeper::Watch(int fd) { return Control(EPOLL_CTL_ADD, fd, EPOLLIN); }

Status Sleeper::Add(int fd) { return Control(EPOLL_CTL_ADD, fd, 0); }

void Sleeper::WatchOnce(int fd) {
  Control(EPOLL_CTL_MOD, fd, uint32_t{EPOLLIN} | EPOLLONESHOT).IgnoreError();
}

void Sleeper::Unwatch(int fd) { Control(EPOLL_CTL_MOD, fd, 0).IgnoreError(); }

void Sleeper::WakeAfter(Nanos now, Nanos interval) {
  const Nanos due = now + interval;
  std::lock_guard<std::mutex> lock(timer_mu_);
  if (timer_due_ > now && timer_due_ <= due) return;
  timer_due_ = due;
  itimerspec when = {};
  when.it_value.tv_sec = interval / kSecond;
  when.it_value.tv_nsec = interval % kSecond;
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

void Sleeper::Sleep(Nanos deadline) {
  epoll_event events[kMaxEvents];
  const int count = epoll_wait(epoll_.get(), events, kMaxEvents, MillisecondsUntil(deadline));
  uint32_t by = 0;
  for (int i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    by |= fd == wake_.get() ? kByWake : fd == timer_.get() ? kByTimer : kByWatched;
  }
  if (by != 0) woken_.fetch_or(by);
}

void Sleeper::Wake() {
  const uint64_t one = 1;
  // If the counter is full, sleepers wake up anyway.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

bool Sleeper::Clear() {
  const uint32_t by = woken_.exchange(0);
  uint64_t count = 0;
  [[maybe_unused]] ssize_t taken = 0;
  if ((by & kByWake) != 0) taken = read(wake_.get(), &count, sizeof(count));
  if ((by & kByTimer) != 0) taken = read(timer_.get(), &count, sizeof(count));
  return (by & kByWatched) != 0;
}

}  // namespace rdma_transport::fabric::host
