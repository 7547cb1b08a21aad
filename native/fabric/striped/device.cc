#include "fabric/striped/device.h"

#include <algorithm>
#include <utility>

#include "fabric/host/pci_distance.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr Nanos kPast = 1;  // a deadline in the past: sleep without waiting
constexpr Nanos kServiceInterval = 100 * kMillisecond;
constexpr Nanos kLately = 60 * kSecond;
// A thread that does not sleep looks at the clock and at what follows only now and then: together
// they take longer than a poll that finds nothing.
constexpr uint32_t kPollsPerLook = 16;
// Channels whose handler is looked at in a turn without events.
constexpr size_t kHandlersPerTurn = 8;

}  // namespace

Status StripedDevice::Create(std::string name, std::vector<std::unique_ptr<Device>> rails,
                             const StripedSettings& settings, std::unique_ptr<Device>* device) {
  std::unique_ptr<StripedDevice> made(
      new StripedDevice(std::move(name), std::move(rails), settings));
  if (made->rails_.size() > 1) {
    RDMA_RETURN_IF_ERROR(made->sleeper_.Init());
    for (const auto& rail : made->rails_) {
      RDMA_RETURN_IF_ERROR(made->sleeper_.Watch(rail->WaitDescriptor()));
    }
  }
  *device = std::move(made);
  return OkStatus();
}

StripedDevice::~StripedDevice() {
  if (Usable()) {
    slow_calls_.Wait();
  } else {
    slow_calls_.Abandon();  // a child has no threads but its own
  }
}

std::string StripedDevice::Summary() const {
  std::string summary = rails_.front()->Summary();
  for (size_t i = 1; i < rails_.size(); ++i) {
    std::string more = rails_[i]->Summary();
    const std::string common = name_ + " by ";
    if (more.compare(0, common.size(), common) == 0) more.erase(0, common.size());
    summary += ", " + more;
  }
  return summary;
}

std::vector<PortReport> StripedDevice::Ports() const {
  std::vector<PortReport> ports;
  for (const auto& rail : rails_) {
    for (PortReport& port : rail->Ports()) ports.push_back(std::move(port));
  }
  return ports;
}

Status StripedDevice::Reaches(std::string_view channel_address) const {
  ChannelAddress peer;
  RDMA_RETURN_IF_ERROR(ChannelAddress::Decode(channel_address, &peer));
  Status first;
  for (const auto& rail : rails_) {
    for (const RailAddress& other : peer.rails) {
      if (other.address.empty()) continue;
      const Status reaches = rail->Reaches(other.address);
      if (reaches.ok()) return reaches;
      if (first.ok()) first = reaches;
    }
  }
  return first.ok() ? Status(Code::kUnavailable, "none of its ports is up") : first;
}

// --- Memory ---

Status StripedDevice::Allocate(size_t length, Access access, void* place,
                               std::unique_ptr<Region>* region) {
  Status refused;
  for (const auto& rail : rails_) {
    const Status allocated = rail->Allocate(length, access, place, region);
    if (refused.ok()) refused = allocated;
    if (!allocated.ok()) continue;
    for (const auto& other : rails_) {
      if (other != rail) other->Adopt(region->get()).IgnoreError();
    }
    return OkStatus();
  }
  return refused;
}

// What a rail does not take goes by the others.
Status StripedDevice::Adopt(Region* region) {
  Status refused;
  bool adopted = false;
  for (const auto& rail : rails_) {
    const Status status = rail->Adopt(region);
    adopted |= status.ok();
    if (refused.ok()) refused = status;
  }
  return adopted ? OkStatus() : refused;
}

bool StripedDevice::Imports() const {
  return std::any_of(rails_.begin(), rails_.end(),
                     [](const auto& rail) { return rail->Imports(); });
}

Status StripedDevice::Import(const DeviceMemory& memory, Access access,
                             std::unique_ptr<Region>* region) {
  std::vector<std::pair<host::PciDistance, Device*>> nearest;
  for (const auto& rail : rails_) {
    if (!rail->Imports()) continue;
    const std::vector<PortReport> ports = rail->Ports();
    const std::string folder = ports.empty() ? "" : ports.front().folder;
    nearest.emplace_back(host::DistanceBetween(folder, memory.device), rail.get());
  }
  std::stable_sort(nearest.begin(), nearest.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  Status refused = Device::Import(memory, access, region);
  for (size_t i = 0; i < nearest.size(); ++i) {
    const Status imported = nearest[i].second->Import(memory, access, region);
    if (imported.ok()) return imported;
    if (i == 0) refused = imported;
  }
  return refused;
}

bool StripedDevice::Locate(const void* data, RemoteSpan* span) const {
  return std::any_of(rails_.begin(), rails_.end(),
                     [&](const auto& rail) { return rail->Locate(data, span); });
}

// --- Channels ---

Status StripedDevice::Open(std::weak_ptr<ChannelHandler> handler,
                           std::shared_ptr<Channel>* channel) {
  auto made =
      std::make_shared<StripedChannel>(static_cast<ChannelDevice*>(this), std::move(handler));
  RDMA_RETURN_IF_ERROR(made->Open());
  channels_.Add(made.get(), made);
  Wake();
  *channel = std::move(made);
  return OkStatus();
}

std::vector<std::pair<Device*, bool>> StripedDevice::ordered_rails() const {
  const Nanos now = Now();
  std::vector<std::pair<int, size_t>> order;  // a rank, and the rail
  for (size_t i = 0; i < rails_.size(); ++i) {
    const Nanos failed = failed_at_[i].load();
    const bool lately = failed != 0 && now - failed < kLately;
    order.emplace_back(rails_[i]->Active() ? (lately ? 1 : 0) : 2, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::pair<Device*, bool>> rails;
  for (const auto& [rank, i] : order) rails.emplace_back(rails_[i].get(), rank < 2);
  return rails;
}

void StripedDevice::NoteFailure(const Device* device) {
  for (size_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].get() == device) failed_at_[i].store(Now());
  }
}

void StripedDevice::Attend(std::weak_ptr<StripedChannel> channel) {
  calls_.Add(std::move(channel));
  if (asleep_.load()) Wake();
}

// Looks at the next `most` channels, and calls for those whose handler is gone. Returns whether
// there was one.
bool StripedDevice::CallAbandoned(size_t most) {
  bool found = false;
  channels_.LookAtNext(most, [&](const Weak& weak) {
    const auto channel = weak.lock();
    if (channel == nullptr || !channel->abandoned()) return;
    calls_.Add(channel);
    found = true;
  });
  return found;
}

// Channels leave a rail whose port goes down, and take it back.
void StripedDevice::LookAtPorts() {
  uint32_t active = 0;
  for (size_t i = 0; i < rails_.size(); ++i) active |= (rails_[i]->Active() ? 1U : 0U) << i;
  if (std::exchange(active_, active) == active) return;
  for (const auto& channel : channels_.copy()) calls_.Add(channel);
}

int StripedDevice::Poll() {
  if (!Usable()) return 0;
  const bool slept = asleep_.load();
  if (slept) asleep_.store(false);
  if (sleeper_.woken()) sleeper_.Clear();
  channels_.Refresh();
  int handled = 0;
  // They take turns in being the first, which would otherwise get the most pieces.
  first_ = first_ + 1 < rails_.size() ? first_ + 1 : 0;
  for (size_t i = 0; i < rails_.size(); ++i) {
    handled += rails_[(first_ + i) % rails_.size()]->Poll();
  }
  if (!slept && calls_.empty() && ++polls_ % kPollsPerLook != 0) return handled;
  const Nanos now = Now();
  const bool due = now - served_ >= kServiceInterval;
  if (rails_.size() > 1) LookAtPorts();
  if (due) served_ = now;
  if (due || handled == 0) CallAbandoned(due ? channels_.copy().size() : kHandlersPerTurn);
  if (!calls_.empty()) {
    calls_.Take(&callers_);
    for (const auto& weak : callers_) {
      if (const auto channel = weak.lock()) channel->Service(now);
    }
  }
  if (!due) return handled;
  for (const auto& weak : channels_.copy()) {
    const auto channel = weak.lock();
    if (channel != nullptr && channel->NeedsService()) channel->Service(now);
  }
  return handled;
}

bool StripedDevice::ArmNotification() {
  if (!Usable()) return true;
  asleep_.store(true);
  bool quiet = true;
  for (const auto& rail : rails_) quiet = rail->ArmNotification() && quiet;
  const auto needs_service = [](const auto& weak) {
    const auto channel = weak.lock();
    return channel != nullptr && channel->NeedsService();
  };
  if (rails_.size() > 1 &&
      std::any_of(channels_.copy().begin(), channels_.copy().end(), needs_service)) {
    sleeper_.WakeAfter(Now(), kServiceInterval);
  }
  return quiet && calls_.empty() && !channels_.stale() && !CallAbandoned(kHandlersPerTurn);
}

void StripedDevice::Sleep(Nanos deadline) {
  if (rails_.size() == 1) return rails_.front()->Sleep(deadline);
  sleeper_.Sleep(deadline);
  for (const auto& rail : rails_) rail->Sleep(kPast);
}

void StripedDevice::Wake() {
  if (rails_.size() == 1) return rails_.front()->Wake();
  sleeper_.Wake();
}

int StripedDevice::WaitDescriptor() const {
  return rails_.size() == 1 ? rails_.front()->WaitDescriptor() : sleeper_.descriptor();
}

}  // namespace rdma_transport::fabric::striped
