#include "fabric/shm/device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/random.h"
#include "fabric/host/fork_guard.h"
#include "fabric/host/identity.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"

namespace rdma_transport::fabric::shm {

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
  channels_.Clear();  // before the members below, which they use
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
  for (const auto& channel : channels_.All()) channel->WithdrawRegion(key);
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
  return host::CanShareMemory(address.host);
}

Status ShmDevice::Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  auto made = std::make_shared<ShmChannel>(static_cast<ChannelDevice*>(this), std::move(handler),
                                           RandomBytes(kTokenLength));
  channels_.Add(made.get(), made);
  made->Attend();
  *channel = std::move(made);
  return OkStatus();
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

}  // namespace rdma_transport::fabric::shm
