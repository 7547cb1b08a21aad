#include "fabric/verbs/device.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/host/region.h"
#include "fabric/verbs/memlock.h"
#include "fabric/verbs/rails.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr uint64_t kLargestChunk = uint64_t{1} << 30;

// Opens the ports that can be used. Those after the first may fail.
Status OpenPorts(const VerbsSettings& settings, std::vector<std::unique_ptr<Adapter>>* adapters) {
  std::shared_ptr<const Library> library;
  RDMA_RETURN_IF_ERROR(LoadLibrary(settings.library, &library));
  std::vector<Port> ports;
  std::vector<std::string> left_out;
  std::vector<Port> standby;
  RDMA_RETURN_IF_ERROR(ChoosePorts(*library, settings, &ports, &left_out, &standby));
  for (const std::string& reason : left_out) Log(LogLevel::kInfo, "verbs: " + reason);
  Status first;
  for (Port& port : ports) {
    std::unique_ptr<Adapter> adapter;
    const Status status =
        Adapter::Open(settings, library, std::move(port), adapters->size(), &adapter);
    if (status.ok()) {
      adapters->push_back(std::move(adapter));
    } else {
      Log(LogLevel::kWarning, "verbs: a port is not used: " + status.message());
      if (first.ok()) first = status;
    }
  }
  const bool none = adapters->empty();
  for (Port& port : standby) {
    std::unique_ptr<Adapter> adapter;
    const Status status =
        Adapter::Open(settings, library, std::move(port), adapters->size(), &adapter);
    if (!none && status.ok()) adapters->push_back(std::move(adapter));
  }
  return none ? first : OkStatus();
}

}  // namespace

Status VerbsDevice::Create(const Settings& settings, std::unique_ptr<Device>* device) {
  std::unique_ptr<VerbsDevice> made(new VerbsDevice);
  RDMA_RETURN_IF_ERROR(made->Init(settings));
  *device = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Init(const Settings& settings) {
  RDMA_RETURN_IF_ERROR(OpenPorts(settings.verbs, &adapters_));
  memory_ = std::make_unique<RegisteredMemory>(ports());
  chunk_ = kLargestChunk;
  for (const auto& adapter : adapters_) {
    if (!adapter->port().known) continue;
    chunk_ = std::min(chunk_, std::max<uint64_t>(adapter->port().largest_message, 4096));
  }
  keepalive_ = settings.peer_timeout;
  if (settings.verbs.chunk != 0) chunk_ = std::min(chunk_, settings.verbs.chunk);
  piece_ = std::min(Lane::PieceFor(adapters_.front()->port().gigabits), chunk_);
  // The kernel counts memory once for each port that it is registered with.
  RDMA_RETURN_IF_ERROR(
      CheckMemlock(KnownPorts() * MemoryToBeginWith(settings.verbs.ring), MemlockLimit()));
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  for (const auto& adapter : adapters_) {
    RDMA_RETURN_IF_ERROR(sleeper_.Watch(adapter->completion_events()));
    RDMA_RETURN_IF_ERROR(sleeper_.Watch(adapter->async_events()));
  }
  return OkStatus();
}

VerbsDevice::~VerbsDevice() {
  stop_.store(true);
  const bool forked = !adapters_.empty() && !Usable();  // a child has no threads but its own
  if (standby_.joinable() && !forked) standby_.join();
  if (standby_.joinable()) standby_.detach();
  snapshot_.clear();  // destroys channels without another owner before the adapter
  if (forked) {
    slow_calls_.Abandon();
  } else {
    slow_calls_.Wait();
  }
}

std::string VerbsDevice::Summary() const {
  std::string names;
  for (const auto& adapter : adapters_) {
    if (!adapter->port().known) continue;
    names += (names.empty() ? "verbs by " : ", ") + adapter->port().Text();
  }
  return names;
}

std::vector<PortReport> VerbsDevice::Ports() const {
  std::vector<PortReport> reports;
  for (const Adapter* adapter : ports()) {
    const Adapter::Traffic traffic = adapter->traffic();
    reports.push_back({adapter->Name(), adapter->port().Text(), adapter->active(), traffic.written,
                       traffic.read, adapter->failures()});
  }
  return reports;
}

std::vector<Adapter*> VerbsDevice::ports() const {
  std::vector<Adapter*> ports;
  for (const auto& adapter : adapters_) ports.push_back(adapter.get());
  const Nanos now = Now();
  const auto rank = [now](const Adapter* a) { return a->active() ? a->FailedLately(now) : 2; };
  std::stable_sort(ports.begin(), ports.end(),
                   [&](const Adapter* a, const Adapter* b) { return rank(a) < rank(b); });
  return ports;
}

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

Status VerbsDevice::Import(const DeviceMemory& memory, Access access,
                           std::unique_ptr<Region>* region) {
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
  Status first;
  for (const auto& adapter : adapters_) {
    const ChannelAddress::Port own = AddressOf(adapter->port());
    for (const ChannelAddress::Port& port : peer.ports) {
      if (!own.known || !port.known) continue;
      const Status status = Reachable(own, port);
      if (status.ok()) return status;
      if (first.ok()) {
        first = Status(status.code(), status.message() + " " + adapter->port().Text());
      }
    }
  }
  return first;
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
