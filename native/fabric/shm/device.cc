#include "fabric/shm/device.h"

#include <sys/epoll.h>

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

constexpr Nanos kSocketInterval = kMillisecond;  // while busy; a sleeping device hears at once
constexpr Nanos kStrangerPatience = 5 * kSecond;

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
  RDMA_RETURN_IF_ERROR(doorbell_.Create());
  RDMA_RETURN_IF_ERROR(Listen(socket_name_, &listener_));
  epoll_ = host::FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return StatusFromErrno(errno, "epoll_create1");
  host::GuardDescriptor(listener_.get());
  RDMA_RETURN_IF_ERROR(AddToEpoll(doorbell_.event_fd(), &doorbell_));
  return AddToEpoll(listener_.get(), &listener_);
}

ShmDevice::~ShmDevice() {
  snapshot_.clear();  // a channel that nobody else holds takes itself off the lists below
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
  if (Foreign()) {
    return Status(Code::kFailedPrecondition, "the arena belongs to the process that forked this");
  }
  if (length == 0 || length % Window::kGranule != 0) {
    return Status(Code::kInvalidArgument,
                  "a region's length must be a multiple of " + std::to_string(Window::kGranule));
  }
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
      if (!Window::Get().Map(fd, region.length(), /*writable=*/false, span.key, id_, &view).ok()) {
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
    if (mapping->owner() != id_) return false;
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
  if (Foreign()) {
    return Status(Code::kFailedPrecondition, "the device belongs to the process that forked this");
  }
  auto made = std::make_shared<ShmChannel>(this, std::move(handler), RandomBytes(kTokenLength));
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

Status ShmDevice::Watch(ShmChannel* channel) {
  host::GuardDescriptor(channel->socket_fd());
  return AddToEpoll(channel->socket_fd(), channel);
}

void ShmDevice::Unwatch(ShmChannel* channel) {
  std::lock_guard<std::mutex> lock(channels_mu_);
  expected_.erase(channel->token());
  channels_version_.fetch_add(1);
  if (channel->socket_fd() < 0) return;
  host::UnguardDescriptor(channel->socket_fd());
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel->socket_fd(), nullptr);
}

std::vector<std::shared_ptr<ShmChannel>> ShmDevice::Channels() const {
  std::vector<std::shared_ptr<ShmChannel>> channels;
  std::lock_guard<std::mutex> lock(channels_mu_);
  for (const auto& weak : channels_) {
    auto channel = weak.lock();
    if (channel != nullptr && !channel->finished()) channels.push_back(std::move(channel));
  }
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
  doorbell_.LowerFlag();
  if (woken_.load(std::memory_order_relaxed)) HandleSockets();
  RefreshSnapshot();
  int handled = 0;
  bool closed_some = false;
  for (const auto& channel : snapshot_) {
    if (!channel->closed()) handled += channel->Poll();
    if (channel->closed()) {
      channel->FinishClose();
      closed_some = true;
    }
  }
  if (closed_some) snapshot_version_ = ~uint64_t{0};
  if (Now() - sockets_checked_ > kSocketInterval) HandleSockets();
  return handled;
}

bool ShmDevice::HasWork() {
  return channels_version_.load() != snapshot_version_ ||
         std::any_of(snapshot_.begin(), snapshot_.end(),
                     [](const auto& channel) { return channel->HasWork(); });
}

bool ShmDevice::Rest() {
  doorbell_.RaiseFlag();
  for (const auto& channel : snapshot_) channel->RingIfLazy();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !HasWork();
}

void ShmDevice::Sleep(Nanos deadline) {
  int timeout_ms = -1;
  if (deadline != 0) {
    const Nanos left = deadline - Now();
    timeout_ms = left <= 0 ? 0 : static_cast<int>(left / kMillisecond + 1);
  }
  // Only looked at: the polling thread takes and handles it.
  epoll_event event;
  if (epoll_wait(epoll_.get(), &event, 1, timeout_ms) > 0) woken_.store(true);
}

void ShmDevice::Wake() { doorbell_.RingAlways(); }

void ShmDevice::HandleSockets() {
  sockets_checked_ = Now();
  woken_.store(false);
  epoll_event events[16];
  const int count = epoll_wait(epoll_.get(), events, 16, 0);
  std::vector<std::shared_ptr<ShmChannel>> channels;
  for (int i = 0; i < count; ++i) {
    void* tag = events[i].data.ptr;
    if (tag == &doorbell_) {
      doorbell_.Drain();
    } else if (tag == &listener_) {
      AcceptStrangers();
    } else if (strangers_.count(static_cast<Stranger*>(tag)) != 0) {
      HandleStranger(static_cast<Stranger*>(tag));
    } else {
      if (channels.empty()) channels = Channels();
      for (const auto& channel : channels) {
        if (channel.get() == tag) channel->HandleSocket();
      }
    }
  }
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    Stranger* stranger = (it++)->first;
    if (Now() - stranger->since > kStrangerPatience) DropStranger(stranger);
  }
}

void ShmDevice::AcceptStrangers() {
  while (true) {
    host::FileDescriptor socket;
    const Status status = Accept(listener_.get(), &socket);
    if (!status.ok()) {
      if (status.code() != Code::kNotFound) Log(LogLevel::kWarning, status.message());
      return;
    }
    const Status user = CheckPeerUser(socket.get());
    if (!user.ok()) {
      Log(LogLevel::kWarning, "refused a local connection: " + user.message());
      continue;
    }
    auto stranger = std::make_unique<Stranger>(Stranger{std::move(socket), Now()});
    if (!AddToEpoll(stranger->socket.get(), stranger.get()).ok()) continue;
    Stranger* tag = stranger.get();
    strangers_[tag] = std::move(stranger);
  }
}

void ShmDevice::DropStranger(Stranger* stranger) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->socket.get(), nullptr);
  strangers_.erase(stranger);
}

std::shared_ptr<ShmChannel> ShmDevice::TakeExpected(const std::string& token) {
  const ShmChannel* wanted = nullptr;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    const auto expected = expected_.find(token);
    if (expected == expected_.end()) return nullptr;
    wanted = expected->second;
    expected_.erase(expected);
  }
  for (auto& channel : Channels()) {
    if (channel.get() == wanted) return channel;
  }
  return nullptr;
}

void ShmDevice::HandleStranger(Stranger* stranger) {
  Message message;
  Status status = ReceiveMessage(stranger->socket.get(), &message);
  if (status.code() == Code::kNotFound) return;
  Hello hello;
  if (status.ok()) status = FromBytes(message.bytes, &hello);
  if (status.ok() && hello.type != MessageType::kHello) {
    status = Status(Code::kDataLoss, "the first message is not a hello");
  }
  std::shared_ptr<ShmChannel> channel;
  if (status.ok()) {
    channel = TakeExpected(std::string(hello.token, sizeof(hello.token)));
  }
  if (channel == nullptr) {
    Log(LogLevel::kWarning, "refused a local connection that nobody asked for" +
                                (status.ok() ? "" : ": " + status.message()));
    DropStranger(stranger);
    return;
  }
  host::FileDescriptor socket = std::move(stranger->socket);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, socket.get(), nullptr);
  strangers_.erase(stranger);
  status = channel->Attach(std::move(socket), &message);
  if (status.ok()) status = Watch(channel.get());
  if (!status.ok()) channel->Close(status);
}

}  // namespace rdma_transport::fabric::shm
