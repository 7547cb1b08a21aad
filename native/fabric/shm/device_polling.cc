// What the device does on the polling thread: active and idle channels, sleep, sockets and new
// connections.
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/shm/device.h"

namespace rdma_transport::fabric::shm {
namespace {

// While busy; a sleeping device reacts at once.
constexpr Nanos kSocketInterval = 100 * kMicrosecond;
constexpr int kEventsPerTurn = 64;
// A channel is idle after one to two of these without an event.
constexpr Nanos kIdleInterval = kMillisecond;
// Idle channels that are looked at in a turn, so that they seldom need the next look at sockets.
constexpr size_t kIdlePerTurn = 4;
constexpr Nanos kPendingTimeout = 5 * kSecond;
// Bounds on connections of this user, to protect other channels' turns and descriptors.
constexpr size_t kMaxPendingConnections = 64;
constexpr int kAcceptsPerTurn = 16;
// Without a free descriptor, the listener would become readable again at once.
constexpr long kListenerPauseMs = 100;

}  // namespace

// --- Channels ---

void ShmDevice::ListActive() {
  active_.clear();
  for (const auto& channel : channels_.copy()) {
    if (channel->active()) active_.push_back(channel.get());
  }
}

void ShmDevice::Activate(ShmChannel* channel) {
  if (channel->active()) return;
  channel->SetActive(true);
  active_.push_back(channel);
}

void ShmDevice::ActivateCallers() {
  calls_.Take(&callers_);
  for (const ShmChannel* caller : callers_) {
    if (ShmChannel* channel = channels_.Find(caller)) Activate(channel);
  }
}

// A channel that gets work while it becomes idle stays active: whoever gives it work calls Attend()
// afterwards, and a peer looks at the flag after it has written.
void ShmDevice::LetIdle() {
  let_idle_ = sockets_checked_;
  const auto idles = [](ShmChannel* channel) {
    if (channel->TakeWorked()) return false;
    channel->RingIfLazy();
    if (channel->Busy()) return false;
    channel->SetActive(false);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!channel->Busy()) return true;
    channel->SetActive(true);
    return false;
  };
  active_.erase(std::remove_if(active_.begin(), active_.end(), idles), active_.end());
}

// --- Turns ---

int ShmDevice::Poll() {
  if (asleep_.load(std::memory_order_relaxed)) SetFlags(false);
  if (woken_.load(std::memory_order_relaxed)) HandleSockets();
  channels_.Refresh();
  ActivateCallers();
  int handled = 0;
  for (ShmChannel* channel : active_) {
    if (!channel->closed()) handled += channel->Poll();
    if (channel->closed()) channel->FinishClose();
  }
  channels_.LookAtNext(handled > 0 ? 1 : kIdlePerTurn, [this](const auto& channel) {
    if (!channel->active() && channel->Busy()) Activate(channel.get());
  });
  if (Now() - sockets_checked_ > kSocketInterval) HandleSockets();
  if (sockets_checked_ - let_idle_ > kIdleInterval) LetIdle();
  return handled;
}

bool ShmDevice::HasWork() {
  return channels_.stale() || !calls_.empty() ||
         std::any_of(active_.begin(), active_.end(),
                     [](const ShmChannel* channel) { return channel->HasWork(); });
}

// Each peer has its own flag, so a peer cannot clear another's. Those of idle channels are raised.
void ShmDevice::SetFlags(bool asleep) {
  asleep_.store(asleep);
  for (ShmChannel* channel : active_) {
    if (!channel->attached()) continue;
    asleep ? channel->RaiseFlag() : channel->LowerFlag();
  }
}

bool ShmDevice::ArmNotification() {
  SetFlags(true);
  // Orders the flags before the looks at what others do: they look at a flag afterwards.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (ShmChannel* channel : active_) channel->RingIfLazy();
  return !HasWork();
}

void ShmDevice::Sleep(Nanos deadline) {
  // Only check for events here. The polling thread consumes them.
  epoll_event event;
  if (epoll_wait(epoll_.get(), &event, 1, MillisecondsUntil(deadline)) > 0) woken_.store(true);
}

// The write fails only if the counter is full, and then all sleepers wake up anyway.
void ShmDevice::Wake() {
  const uint64_t one = 1;
  if (!Foreign()) [[maybe_unused]]
    const ssize_t written = write(event_.get(), &one, sizeof(one));
}

void ShmDevice::HandleSockets() {
  sockets_checked_ = Now();
  woken_.store(false);
  channels_.Refresh();
  epoll_event events[kEventsPerTurn];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerTurn, 0);
  for (int i = 0; i < count; ++i) HandleEvent(events[i].data.ptr, events[i].events);
  while (!pending_.empty() && Now() - pending_.front().since > kPendingTimeout) {
    DropConnection(pending_.begin());
  }
}

void ShmDevice::HandleEvent(void* tag, uint32_t events) {
  if (tag == &event_) {
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t got = read(event_.get(), &wakes, sizeof(wakes));
    return;
  }
  if (tag == &listener_) return AcceptConnections();
  if (tag == &resume_timer_) return ResumeListening();
  if (ShmChannel* channel = channels_.Known(tag)) {
    Activate(channel);
    return channel->HandleSocket((events & EPOLLOUT) != 0);
  }
  for (auto connection = pending_.begin(); connection != pending_.end(); ++connection) {
    if (&*connection == tag) return HandleConnection(connection);
  }
}

// Connections that remain are accepted in the next turn.
void ShmDevice::AcceptConnections() {
  for (int i = 0; i < kAcceptsPerTurn && AcceptConnection(); ++i) {
  }
}

// Returns false if there is no connection or none can be accepted now.
bool ShmDevice::AcceptConnection() {
  PendingConnection connection = {{}, 0, Now()};
  const Status accepted = Accept(listener_.get(), &connection.socket);
  if (accepted.code() == Code::kNotFound) return false;
  if (!accepted.ok()) {
    refusals_.Log(accepted.message());
    PauseListening();
    return false;
  }
  const Status user = CheckPeerUser(connection.socket.get(), &connection.process);
  if (!user.ok()) {
    refusals_.Log("refused a local connection: " + user.message());
    return true;
  }
  if (pending_.size() == kMaxPendingConnections) DropConnection(pending_.begin());
  pending_.push_back(std::move(connection));
  const Status watched = AddToEpoll(pending_.back().socket.get(), &pending_.back());
  if (!watched.ok()) pending_.pop_back();
  return true;
}

void ShmDevice::PauseListening() {
  epoll_event none = {};
  none.data.ptr = &listener_;
  const itimerspec once = {{0, 0}, {0, kListenerPauseMs * kMillisecond}};
  if (timerfd_settime(resume_timer_.get(), 0, &once, nullptr) != 0) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &none);
}

void ShmDevice::ResumeListening() {
  uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t got = read(resume_timer_.get(), &expirations, sizeof(expirations));
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &listener_;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
}

void ShmDevice::DropConnection(std::list<PendingConnection>::iterator connection) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket.get(), nullptr);
  pending_.erase(connection);
}

std::shared_ptr<ShmChannel> ShmDevice::Expected(std::string_view greeting) const {
  for (auto& channel : channels_.All()) {
    if (channel->Expects(greeting)) return std::move(channel);
  }
  return nullptr;
}

void ShmDevice::HandleConnection(std::list<PendingConnection>::iterator connection) {
  Message message;
  Status status = ReceiveMessage(connection->socket.get(), &message);
  if (status.code() == Code::kNotFound) return;
  Hello hello;
  if (status.ok()) status = FromBytes(message.bytes, &hello);
  if (status.ok() && hello.type != MessageType::kHello) {
    status = Status(Code::kDataLoss, "the first message is not a hello");
  }
  std::shared_ptr<ShmChannel> channel;
  if (status.ok()) {
    channel = Expected(std::string_view(hello.greeting, sizeof(hello.greeting)));
  }
  if (channel == nullptr) {
    refusals_.Log("refused a local connection that no task here expected" +
                  (status.ok() ? "" : ": " + status.message()));
    return DropConnection(connection);
  }
  host::FileDescriptor socket = std::move(connection->socket);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  const pid_t process = connection->process;
  pending_.erase(connection);
  channel->Attend();
  status = channel->Attach(std::move(socket), process, &message);
  if (!status.ok()) channel->Close(status);
}

}  // namespace rdma_transport::fabric::shm
