#include "fabric/verbs/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fabric/host/region.h"
#include "fabric/verbs/memlock.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr uint64_t kLargestChunk = uint64_t{1} << 30;

bool IsIpv4(const uint8_t* gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid, kPrefix, sizeof(kPrefix)) == 0;
}

}  // namespace

Status VerbsDevice::Create(const Settings& settings, std::unique_ptr<Device>* device) {
  std::unique_ptr<VerbsDevice> made(new VerbsDevice);
  RDMA_RETURN_IF_ERROR(made->Init(settings));
  *device = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Init(const Settings& settings) {
  RDMA_RETURN_IF_ERROR(Adapter::Open(settings.verbs, &adapter_));
  memory_ = std::make_unique<RegisteredMemory>(adapter_.get());
  chunk_ = std::min(kLargestChunk, std::max<uint64_t>(adapter_->port().largest_message, 4096));
  keepalive_ = settings.peer_timeout;
  if (settings.verbs.chunk != 0) chunk_ = std::min(chunk_, settings.verbs.chunk);
  RDMA_RETURN_IF_ERROR(CheckMemlock(MemoryToBeginWith(settings.verbs.ring), MemlockLimit()));
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  RDMA_RETURN_IF_ERROR(sleeper_.Watch(adapter_->completion_events()));
  return sleeper_.Watch(adapter_->async_events());
}

VerbsDevice::~VerbsDevice() {
  snapshot_.clear();  // destroys channels without another owner before the adapter
}

std::string VerbsDevice::Summary() const { return "verbs by " + adapter_->port().Text(); }

// --- Memory ---

Status VerbsDevice::Allocate(size_t length, Access access, void* place,
                             std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(host::MemoryRegion::Create(memory_->NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(memory_->Add(made.get(), /*now=*/true));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Adopt(Region* region) {
  RDMA_RETURN_IF_ERROR(memory_->Add(region, /*now=*/false));
  region->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  return OkStatus();
}

Status VerbsDevice::Import(const DmaBuf& memory, Access access, std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  auto made = std::make_unique<host::ImportedRegion>(memory_->NewKeyOfImported(), memory, access);
  RDMA_RETURN_IF_ERROR(memory_->AddImported(made.get(), memory));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

void VerbsDevice::OnRegionEnd(uint64_t key) {
  for (const auto& channel : Channels()) channel->ForgetRegion(key);
  memory_->Remove(key);
}

bool VerbsDevice::Locate(const void* data, RemoteSpan* span) const {
  return Usable() && memory_->Locate(data, span);
}

// --- Channels ---

Status VerbsDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  const Port& port = adapter_->port();
  if (peer.ethernet != port.ethernet) {
    return Status(Code::kUnavailable, std::string("it is on ") +
                                          (peer.ethernet ? "RoCE" : "InfiniBand") + ", this is " +
                                          port.Text());
  }
  if (port.ethernet && IsIpv4(peer.gid.data()) != IsIpv4(port.gid.bytes.raw)) {
    return Status(Code::kUnavailable,
                  "one GID is IPv4, the other IPv6: set RDMA_TRANSPORT_GID_INDEX so "
                  "that both are of one kind; here " +
                      port.Text());
  }
  return OkStatus();
}

Status VerbsDevice::Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  uint32_t tag = 0;
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    tag = next_tag_;
    next_tag_ += kMaxQueuePairs;
  }
  auto made =
      std::make_shared<VerbsChannel>(static_cast<ChannelDevice*>(this), std::move(handler), tag);
  RDMA_RETURN_IF_ERROR(made->Open());
  {
    std::lock_guard<std::mutex> lock(channels_mu_);
    channels_[tag] = made;
    channels_version_.fetch_add(1);
  }
  // A sleeping polling thread has not requested events of a completion queue created for this
  // channel.
  Wake();
  *channel = std::move(made);
  return OkStatus();
}

std::vector<std::shared_ptr<VerbsChannel>> VerbsDevice::Channels() const {
  std::vector<std::shared_ptr<VerbsChannel>> channels;
  std::lock_guard<std::mutex> lock(channels_mu_);
  for (const auto& [tag, weak] : channels_) {
    if (auto channel = weak.lock()) channels.push_back(std::move(channel));
  }
  return channels;
}

}  // namespace rdma_transport::fabric::verbs
