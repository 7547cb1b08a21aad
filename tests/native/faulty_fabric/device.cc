#include "faulty_fabric/device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "faulty_fabric/channel.h"

namespace rdma_transport::testing {

FaultyDevice::~FaultyDevice() = default;

Status FaultyDevice::Allocate(size_t length, fabric::Access access, void* place,
                              std::unique_ptr<fabric::Region>* region) {
  Status wrong;
  if (dice_.Roll(Fault::kAllocate, &wrong)) return wrong;
  return inner_->Allocate(length, access, place, region);
}

Status FaultyDevice::Adopt(fabric::Region* region) {
  Status wrong;
  if (dice_.Roll(Fault::kAllocate, &wrong)) return wrong;
  return inner_->Adopt(region);
}

fabric::MappedSpan FaultyDevice::MapOwn(const fabric::RemoteSpan& span) {
  if (dice_.Roll(Fault::kMap)) return {};
  return inner_->MapOwn(span);
}

Status FaultyDevice::Open(std::weak_ptr<fabric::ChannelHandler> handler,
                          std::shared_ptr<fabric::Channel>* channel) {
  Status wrong;
  if (dice_.Roll(Fault::kOpen, &wrong)) return wrong;
  if (!Active()) return Status(Code::kUnavailable, "its port is not active");
  auto made = std::make_shared<FaultyChannel>(this, std::move(handler));
  RDMA_RETURN_IF_ERROR(made->Open());
  std::lock_guard<std::mutex> lock(mu_);
  channels_.push_back(made);
  *channel = std::move(made);
  return OkStatus();
}

std::vector<std::shared_ptr<FaultyChannel>> FaultyDevice::Channels() {
  std::vector<std::shared_ptr<FaultyChannel>> channels;
  std::lock_guard<std::mutex> lock(mu_);
  channels_.erase(std::remove_if(channels_.begin(), channels_.end(),
                                 [](const auto& weak) { return weak.expired(); }),
                  channels_.end());
  for (const auto& weak : channels_) {
    if (auto channel = weak.lock()) channels.push_back(std::move(channel));
  }
  return channels;
}

// The polling thread holds up all that it would do: the fabric's work, and the timers.
void FaultyDevice::MayStall() {
  const Faults& faults = dice_.faults();
  if (stalls_ >= faults.most_stalls || !dice_.Roll(Fault::kStall)) return;
  ++stalls_;
  const auto stall = static_cast<int64_t>(dice_.Draw(static_cast<uint64_t>(faults.longest_stall)));
  std::this_thread::sleep_for(std::chrono::nanoseconds(stall));
}

int FaultyDevice::Poll() {
  std::thread::id nobody{};
  if (!poller_.compare_exchange_strong(nobody, std::this_thread::get_id())) {
    Violations::Add("Poll() by two threads at a time");
    return 0;
  }
  MayStall();
  inner_->Poll();
  int handled = 0;
  const bool short_poll = dice_.Roll(Fault::kShortPoll);
  for (const auto& channel : Channels()) {
    handled += channel->Advance(short_poll ? 1 : 64);
    if (short_poll && handled > 0) break;
  }
  poller_.store({});
  return handled;
}

// First arms: before that, Wake() may do nothing.
bool FaultyDevice::ArmNotification() {
  if (!inner_->ArmNotification()) return false;
  for (const auto& channel : Channels()) {
    if (channel->Busy()) return false;
  }
  return true;
}

void FaultyDevice::Sleep(Nanos deadline) {
  if (dice_.Roll(Fault::kWakeUp)) return;
  inner_->Sleep(deadline);
}

void FaultyDevice::BreakAll(const Status& reason) {
  for (const auto& channel : Channels()) channel->Break(reason);
  inner_->Wake();
}

}  // namespace rdma_transport::testing
