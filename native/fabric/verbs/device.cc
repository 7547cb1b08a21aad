#include "fabric/verbs/device.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fabric/host/region.h"
#include "fabric/verbs/memlock.h"
#include "fabric/verbs/reach.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr uint64_t kPage = 4096;

std::string SubnetOf(const Port& port) {
  if (!port.known) return std::string();
  Gid prefix = port.gid;
  for (int bit = port.subnet_bits; bit < 128; ++bit) {
    prefix.bytes.raw[bit / 8] &= static_cast<uint8_t>(~(0x80 >> bit % 8));
  }
  const int skipped = IsIpv4(port.gid.bytes.raw) ? 96 : 0;
  return prefix.Text() + "/" + std::to_string(port.subnet_bits - skipped);
}

}  // namespace

Status VerbsDevice::OpenPorts(const Settings& settings,
                              std::vector<std::unique_ptr<Device>>* devices) {
  std::shared_ptr<const Library> library;
  RDMA_RETURN_IF_ERROR(LoadLibrary(settings.verbs.library, &library));
  std::vector<Port> ports;
  std::vector<std::string> left_out;
  std::vector<Port> standby;
  RDMA_RETURN_IF_ERROR(ChoosePorts(*library, settings.verbs, &ports, &left_out, &standby));
  for (const std::string& reason : left_out) Log(LogLevel::kInfo, "verbs: " + reason);
  // The kernel counts memory once for each port that it is registered with.
  Status first = CheckMemlock(ports.size() * MemoryToBeginWith(kLargeRing), MemlockLimit());
  const bool may_lock = first.ok();
  const auto open = [&](Port port) {
    std::unique_ptr<Adapter> adapter;
    RDMA_RETURN_IF_ERROR(Adapter::Open(settings.verbs, library, std::move(port), &adapter));
    std::unique_ptr<VerbsDevice> made(new VerbsDevice(std::move(adapter)));
    RDMA_RETURN_IF_ERROR(made->Init(settings));
    devices->push_back(std::move(made));
    return OkStatus();
  };
  for (Port& port : ports) {
    const Status status = open(std::move(port));
    if (status.ok()) continue;
    Log(LogLevel::kWarning, "verbs: a port is not used: " + status.message());
    if (first.ok()) first = status;
  }
  const bool none = devices->empty();
  for (Port& port : standby) open(std::move(port)).IgnoreError();
  if (none || !may_lock) devices->clear();
  return devices->empty() ? first : OkStatus();
}

Status VerbsDevice::Init(const Settings& settings) {
  keepalive_ = settings.peer_timeout;
  RDMA_RETURN_IF_ERROR(sleeper_.Init());
  RDMA_RETURN_IF_ERROR(sleeper_.Watch(adapter_->completion_events()));
  return sleeper_.Watch(adapter_->async_events());
}

VerbsDevice::~VerbsDevice() {
  channels_.Clear();  // destroys channels without another owner before the adapter
}

std::vector<PortReport> VerbsDevice::Ports() const {
  const Adapter::Traffic traffic = adapter_->traffic();
  return {{adapter_->Name(), adapter_->port().Text(), adapter_->active(), traffic.written,
           traffic.read, adapter_->failures(), SubnetOf(adapter_->port()),
           adapter_->port().folder}};
}

// What is under way takes about 130 us on the wire, which is longer than completions need, and not
// much longer than a small transfer takes alone. While one piece is on the wire, the next one is
// posted.
Pace VerbsDevice::PaceOf(double gigabits_per_second, uint64_t most) {
  constexpr double kSeconds = 130e-6;
  constexpr double kLeast = 64 << 10;
  const double piece = std::max(gigabits_per_second * (1e9 / 8) * kSeconds / 2, kLeast);
  Pace pace;
  pace.piece = static_cast<uint64_t>(piece) / kPage * kPage;
  pace.window = pace.reads = 2 * pace.piece;
  pace.piece = std::min(pace.piece, std::max(most, kPage));
  return pace;
}

Pace VerbsDevice::pace() const {
  const uint64_t wished = adapter_->settings().chunk;
  const uint64_t largest = adapter_->port().largest_message;
  return PaceOf(adapter_->port().gigabits, wished == 0 ? largest : std::min(wished, largest));
}

// --- Memory ---

Status VerbsDevice::Allocate(size_t length, Access access, void* place,
                             std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckAllocation(*this, length));
  std::unique_ptr<host::MemoryRegion> made;
  RDMA_RETURN_IF_ERROR(
      host::MemoryRegion::Create(RegisteredMemory::NewKey(), length, access, place, &made));
  RDMA_RETURN_IF_ERROR(memory_.Add(made.get(), /*now=*/true));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

Status VerbsDevice::Adopt(Region* region) {
  RDMA_RETURN_IF_ERROR(memory_.Add(region, /*now=*/false));
  region->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  return OkStatus();
}

Status VerbsDevice::Import(const DeviceMemory& memory, Access access,
                           std::unique_ptr<Region>* region) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  auto made =
      std::make_unique<host::ImportedRegion>(RegisteredMemory::NewKeyOfImported(), memory, access);
  RDMA_RETURN_IF_ERROR(memory_.AddImported(made.get(), memory));
  made->BeforeEnd([this](uint64_t key) { OnRegionEnd(key); });
  *region = std::move(made);
  return OkStatus();
}

void VerbsDevice::OnRegionEnd(uint64_t key) {
  for (const auto& channel : channels_.All()) channel->WithdrawRegion(key);
  memory_.Remove(key);
}

bool VerbsDevice::Locate(const void* data, RemoteSpan* span) const {
  return Usable() && memory_.Locate(data, span);
}

// --- Channels ---

Status VerbsDevice::CheckKnown() const {
  if (adapter_->port().known) return OkStatus();
  return Status(Code::kUnavailable, adapter_->Name() + " is not active yet");
}

Status VerbsDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  RDMA_RETURN_IF_ERROR(CheckKnown());
  return Reachable(adapter_->port(), peer);
}

Status VerbsDevice::Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) {
  RDMA_RETURN_IF_ERROR(host::CheckNotForked(*this));
  RDMA_RETURN_IF_ERROR(CheckKnown());
  const uint32_t tag = ++last_tag_;
  const bool few = channels_.size() < kLargeRings;
  auto made =
      std::make_shared<VerbsChannel>(static_cast<ChannelDevice*>(this), std::move(handler), tag);
  RDMA_RETURN_IF_ERROR(made->Open(few ? kLargeRing : kSmallRing));
  channels_.Add(tag, made);
  // It may have broken before this channel was one of those that end with it.
  if (made->queue()->broken()) {
    const Status broken(Code::kUnavailable, "a completion queue of " + adapter_->Name() + " broke");
    made->Fail(broken);
    return broken;
  }
  // A sleeping polling thread has not requested events of a completion queue created for this
  // channel.
  Wake();
  *channel = std::move(made);
  return OkStatus();
}

}  // namespace rdma_transport::fabric::verbs
