#include "fabric/shm/device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "fabric/host/fork_guard.h"
#include "fabric/host/identity.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"

namespace rdma_transport::fabric::shm {
namespace {

constexpr Nanos kSocketInterval = kMillisecond;  // while busy; a sleeping device reacts at once
constexpr Nanos kPendingTimeout = 5 * kSecond;
// Bounds on connections of this user, to protect other channels' turns and descriptors.
constexpr size_t kMaxPendingConnections = 64;
constexpr int kAcceptsPerTurn = 16;
// Without a free descriptor, the listener would become readable again at once.
constexpr long kListenerPauseMs = 100;

}  // namespace

Status ShmDevice::Create(const Settings&, std::unique_ptr<Device>* device) {
  std::unique_ptr<ShmDevice> made(new ShmDevice);
  RDMA_RETURN_IF_ERROR(made->Init());
  *device = std::move(made);
  return OkStatus();
}

Status ShmDevice::Init() {
  generation_ = host::ForkGeneration();
  id_ = Random64() | 1;
  socket_name_ = "rdma_transport." + Hex(RandomBytes(16));
  self_ = {id_, getpid()};
  event_ = host::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_.valid()) return StatusFromErrno(errno, "eventfd");
  resume_timer_ = host::FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!resume_timer_.valid()) return StatusFromErrno(errno, "timerfd_create");
  RDMA_RETURN_IF_ERROR(Listen(socket_name_, &listener_));
  epoll_ = host::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return StatusFromErrno(errno, "epoll_create1");
  host::GuardDescriptor(listener_.get());
  RDMA_RETURN_IF_ERROR(AddToEpoll(event_.get(), &event_));
  RDMA_RETURN_IF_ERROR(AddToEpoll(resume_timer_.get(), &resume_timer_));
  return AddToEpoll(listener_.get(), &listener_);
}

ShmDevice::~ShmDevice() {
  snapshot_.clear();  // channels without another owner remove themselves from the lists below
  if (!Foreign() && listener_.valid()) host::UnguardDescriptor(listener_.get());
}

bool ShmDevice::Foreign() const { return generation_ != host::ForkGeneration(); }

Status ShmDevice::AddToEpoll(int fd, void* tag) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = tag;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return StatusFromErrno(errno, "epoll_ctl");
  }
  return OkStatus();
}

// --- Regions ---

Status ShmDevice::Allocate(size_t length, Access access, void* place,
                           std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(host::MemoryRegion::Create(regions_.NewKey(), length, access, place, &made));
  made->BeforeEnd([this](uint64_t gone) { OnRegionDestroyed(gone); });
  regions_.Add(made.get());
  *region = std::move(made);
  return OkStatus();
}

Status ShmDevice::Adopt(Region*) {
  return Status(Code::kUnimplemented, "shared memory cannot be made of memory that exists");
}

void ShmDevice::OnRegionDestroyed(uint64_t key) {
  std::shared_ptr<Mapping> view;
  regions_.Remove(key);
  {
    std::lock_guard<std::mutex> lock(own_views_mu_);
    const auto own = own_views_.find(key);
    if (own != own_views_.end()) {
      view = std::move(own->second);
      own_views_.erase(own);
    }
  }
  for (const auto& channel : Channels()) channel->ForgetRegion(key);
}

bool ShmDevice::FindRegion(uint64_t key, uint64_t* length, Access* access, int* fd) const {
  return regions_.With(key, [&](const Region& region) {
    *length = region.length();
    *access = region.access();
    *fd = static_cast<const host::MemoryRegion&>(region).fd();
  });
}

MappedSpan ShmDevice::MapOwn(const RemoteSpan& span) {
  MappedSpan mapped;
  regions_.With(span.key, [&](const Region& region) {
    if (span.offset > region.length() || span.length > region.length() - span.offset) return;
    std::lock_guard<std::mutex> lock(own_views_mu_);
    std::shared_ptr<Mapping>& view = own_views_[span.key];
    if (view == nullptr) {
      const int fd = static_cast<const host::MemoryRegion&>(region).fd();
      if (!Window::Get()
               .Map(fd, region.length(), /*writable=*/false, span.key, self_, nullptr, &view)
               .ok()) {
        own_views_.erase(span.key);
        return;
      }
    }
    mapped = {view->address() + span.offset, view};
  });
  return mapped;
}

bool ShmDevice::Locate(const void* data, RemoteSpan* span) const {
  if (Foreign()) return false;
  const auto address = reinterpret_cast<uintptr_t>(data);
  const Mapping* mapping = Window::Get().Find(data);
  if (mapping != nullptr) {
    if (!(mapping->owner() == self_)) return false;
    span->key = mapping->key();
    span->offset = address - reinterpret_cast<uintptr_t>(mapping->address());
    span->length = mapping->length() - span->offset;
    return true;
  }
  return regions_.Locate(data, span);
}

// --- Channels ---

Status ShmDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress address;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &address));
  if (address.host == host::HostIdentity()) return OkStatus();
  return Status(Code::kUnavailable,
                "it is on another host, in another network namespace, or of another user");
}

Status ShmDevice::Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  auto made = std::make_shared<ShmChannel>(static_cast<ChannelDevice*>(this), std::move(handler),
                                           RandomBytes(kTokenLength));
  std::lock_guard<std::mutex> lock(channels_mu_);
  channels_.push_back(made);
  channels_version_.fetch_add(1);
  *channel = std::move(made);
  return OkStatus();
}

void ShmDevice::Expect(ShmChannel* channel) {
  std::lock_guard<std::mutex> lock(channels_mu_);
  expected_[channel->token()] = channel;
}

Status ShmDevice::Watch(ShmChannel* channel, int socket) { return AddToEpoll(socket, channel); }

void ShmDevice::Unwatch(int socket) {
  if (!Foreign()) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket, nullptr);
}

void ShmDevice::WatchForRoom(ShmChannel* channel, int socket, bool on) {
  epoll_event event = {};
  event.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.ptr = channel;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, socket, &event);
}

void ShmDevice::Forget(ShmChannel* channel) {
  std::lock_guard<std::mutex> lock(channels_mu_);
  expected_.erase(channel->token());
  channels_version_.fetch_add(1);
}

std::vector<std::shared_ptr<ShmChannel>> ShmDevice::Channels() const {
  std::vector<std::shared_ptr<ShmChannel>> channels;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    for (const auto& weak : channels_) {
      // This may be the last reference. Drop it without the lock, because the channel's destructor
      // takes the lock.
      if (auto channel = weak.lock()) channels.push_back(std::move(channel));
    }
  }
  channels.erase(std::remove_if(channels.begin(), channels.end(),
                                [](const auto& channel) { return channel->finished(); }),
                 channels.end());
  return channels;
}

void ShmDevice::RefreshSnapshot() {
  const uint64_t version = channels_version_.load();
  if (version == snapshot_version_) return;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    channels_.erase(std::remove_if(channels_.begin(), channels_.end(),
                                   [](const auto& weak) { return weak.expired(); }),
                    channels_.end());
  }
  snapshot_ = Channels();
  snapshot_version_ = version;
}

// --- The polling thread ---

int ShmDevice::Poll() {
  if (asleep_.load(std::memory_order_relaxed)) SetFlags(false);
  if (woken_.load(std::memory_order_relaxed)) HandleSockets();
  RefreshSnapshot();
  int handled = 0;
  for (const auto& channel : snapshot_) {
    if (!channel->closed()) handled += channel->Poll();
    if (channel->closed()) channel->FinishClose();
  }
  if (Now() - sockets_checked_ > kSocketInterval) HandleSockets();
  return handled;
}

bool ShmDevice::HasWork() {
  return channels_version_.load() != snapshot_version_ ||
         std::any_of(snapshot_.begin(), snapshot_.end(),
                     [](const auto& channel) { return channel->HasWork(); });
}

// Each peer has its own flag, so a peer cannot clear another's.
void ShmDevice::SetFlags(bool asleep) {
  asleep_.store(asleep);
  for (const auto& channel : snapshot_) {
    if (!channel->attached()) continue;
    asleep ? channel->RaiseFlag() : channel->LowerFlag();
  }
}

bool ShmDevice::ArmNotification() {
  SetFlags(true);
  for (const auto& channel : snapshot_) channel->RingIfLazy();
  std::atomic_thread_fence(std::memory_order_seq_cst);
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
  RefreshSnapshot();
  epoll_event events[16];
  const int count = epoll_wait(epoll_.get(), events, 16, 0);
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
  for (const auto& channel : snapshot_) {
    if (channel.get() == tag) return channel->HandleSocket((events & EPOLLOUT) != 0);
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

std::shared_ptr<ShmChannel> ShmDevice::TakeExpected(std::string_view greeting) {
  const ShmChannel* wanted = nullptr;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    const auto expected = std::find_if(
        expected_.begin(), expected_.end(),
        [greeting](const auto& entry) { return entry.second->greeting().IsPeers(greeting); });
    if (expected == expected_.end()) return nullptr;
    wanted = expected->second;
    expected_.erase(expected);
  }
  for (auto& channel : Channels()) {
    if (channel.get() == wanted) return channel;
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
    channel = TakeExpected(std::string_view(hello.greeting, sizeof(hello.greeting)));
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
  status = channel->Attach(std::move(socket), process, &message);
  if (!status.ok()) channel->Close(status);
}

}  // namespace rdma_transport::fabric::shm
