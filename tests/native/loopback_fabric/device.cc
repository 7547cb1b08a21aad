#include "loopback_fabric/device.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "fabric/host/region.h"
#include "fabric/registry.h"
#include "loopback_fabric/channel.h"

namespace rdma_transport::testing {
namespace {

[[maybe_unused]] const bool g_registered = [] {
  fabric::RegisterFabric({"loopback", "peers in this process",
                          [](const Settings& settings, std::vector<fabric::Member>* members) {
                            return fabric::AddDevice("loopback", &LoopbackDevice::Create, settings,
                                                     members);
                          }});
  return true;
}();

}  // namespace

Status LoopbackDevice::Create(const Settings&, std::unique_ptr<fabric::Device>* device) {
  auto made = std::make_unique<LoopbackDevice>();
  made->wake_ = fabric::host::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->wake_.valid()) return StatusFromErrno(errno, "eventfd");
  *device = std::move(made);
  return OkStatus();
}

Status LoopbackDevice::Allocate(size_t length, fabric::Access access, void* place,
                                std::unique_ptr<fabric::Region>* region) {
  RDMA_RETURN_IF_ERROR(fabric::host::CheckAllocation(*this, length));
  std::unique_ptr<fabric::host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(
      fabric::host::MemoryRegion::Create(regions_.NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(Adopt(made.get()));
  *region = std::move(made);
  return OkStatus();
}

Status LoopbackDevice::Adopt(fabric::Region* region) {
  regions_.Add(region);
  region->BeforeEnd([this](uint64_t key) { regions_.Remove(key); });
  return OkStatus();
}

Status LoopbackDevice::Open(std::weak_ptr<fabric::ChannelHandler> handler,
                            std::shared_ptr<fabric::Channel>* channel) {
  RDMA_RETURN_IF_ERROR(fabric::host::CheckNotForked(*this));
  auto made = std::make_shared<LoopbackChannel>(this, std::move(handler));
  std::lock_guard<std::mutex> lock(Mutex());
  channels_.push_back(made);
  *channel = std::move(made);
  return OkStatus();
}

std::vector<std::shared_ptr<LoopbackChannel>> LoopbackDevice::Channels() {
  std::vector<std::shared_ptr<LoopbackChannel>> channels;
  std::lock_guard<std::mutex> lock(Mutex());
  channels_.erase(std::remove_if(channels_.begin(), channels_.end(),
                                 [](const auto& weak) { return weak.expired(); }),
                  channels_.end());
  for (const auto& weak : channels_) {
    if (auto channel = weak.lock()) channels.push_back(std::move(channel));
  }
  return channels;
}

int LoopbackDevice::Poll() {
  uint64_t events = 0;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &events, sizeof(events));
  int handled = 0;
  for (const auto& channel : Channels()) handled += channel->Poll();
  return handled;
}

bool LoopbackDevice::ArmNotification() {
  const auto channels = Channels();
  std::lock_guard<std::mutex> lock(Mutex());
  return std::none_of(channels.begin(), channels.end(),
                      [](const auto& channel) { return channel->HasWork(); });
}

void LoopbackDevice::Sleep(Nanos deadline) {
  pollfd readable = {wake_.get(), POLLIN, 0};
  poll(&readable, 1, MillisecondsUntil(deadline));
}

void LoopbackDevice::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

}  // namespace rdma_transport::testing
