// Ports that are not active when the device is opened. Each is opened, takes no memory, and has a
// place in the address of each channel. When it becomes active, a thread reads it and registers all
// memory with it. Then the channels use it as one that has returned.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "base/log.h"
#include "fabric/verbs/device.h"

namespace rdma_transport::fabric::verbs {
namespace {

constexpr Nanos kFirstStandbyDelay = 1 * kSecond;
constexpr Nanos kLongestStandbyDelay = 60 * kSecond;

bool IsActive(const Adapter& adapter) {
  ibv_port_attr attributes = {};
  return adapter.library().query_port(adapter.port().context, adapter.port().number, &attributes) ==
             0 &&
         attributes.state == IBV_PORT_ACTIVE;
}

}  // namespace

size_t VerbsDevice::KnownPorts() const {
  return static_cast<size_t>(std::count_if(adapters_.begin(), adapters_.end(),
                                           [](const auto& a) { return a->port().known; }));
}

// Begins to prepare a port that has become active. An event says that one has, but its address may
// come later, so others are tried now and then.
void VerbsDevice::TryStandby(Nanos now) {
  standby_due_ = std::numeric_limits<Nanos>::max();
  if (preparing_ != nullptr || KnownPorts() == adapters_.size()) return;
  standby_delay_ = std::clamp(2 * standby_delay_, kFirstStandbyDelay, kLongestStandbyDelay);
  standby_due_ = now + standby_delay_;
  for (const auto& adapter : adapters_) {
    if (adapter->port().known || adapter->dead() || !IsActive(*adapter)) continue;
    preparing_ = adapter.get();
    if (standby_.joinable()) standby_.join();  // it has ended
    standby_ = std::thread([this, port = adapter.get()] { ReadStandby(port); });
    return;
  }
}

// On the thread.
void VerbsDevice::ReadStandby(Adapter* adapter) {
  const Port& best = adapters_.front()->port();
  Port port;
  Status status =
      verbs::ReadStandby(adapter->library(), adapter->settings(), adapter->port(), &port);
  if (status.ok() && (port.ethernet != best.ethernet || port.gigabits != best.gigabits)) {
    status = Status(Code::kFailedPrecondition, "it is not as fast as " + adapters_.front()->Name());
  }
  if (status.ok() && port.largest_message < chunk_) {
    status = Status(Code::kFailedPrecondition, "its messages are too short");
  }
  if (status.ok()) {
    adapter->Know(std::move(port));
    memory_->AddPort(adapter, stop_);
  } else if (standby_reason_ != status.message()) {
    standby_reason_ = status.message();
    Log(LogLevel::kInfo, "verbs: " + adapter->Name() + " is not used: " + standby_reason_);
  }
  prepared_.store(adapter);
  Wake();
}

// The thread has ended.
void VerbsDevice::WakeStandby() {
  Adapter* adapter = prepared_.exchange(nullptr);
  preparing_ = nullptr;
  const Nanos now = Now();
  if (adapter->port().known && IsActive(*adapter)) {
    Log(LogLevel::kInfo, "verbs: " + adapter->port().Text() + " is used, too");
    OnPort(adapter, true, adapter->Name() + " has become active");
  }
  standby_due_ = now;  // others may have become active meanwhile
  if (!adapter->port().known) standby_due_ = now + standby_delay_;
}

}  // namespace rdma_transport::fabric::verbs
