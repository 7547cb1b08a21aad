// Two devices of this process, channels between them, and what their handlers recorded.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "fabric/host/dynamic_library.h"
#include "fabric/registry.h"
#include "fabrics.h"
#include "recorder.h"

namespace rdma_transport::testing {

// Sets `function` to the function of that name in `library`, which must have it.
template <typename Function>
void Find(void* library, const char* name, Function* function) {
  if (library != nullptr && fabric::host::FindFunction(library, name, function)) return;
  std::fprintf(stderr, "%s\n", dlerror());
  std::abort();
}

struct Side {
  Status Notify(const std::string& text, fabric::Urgency urgency = fabric::Urgency::kWake) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    return channel->Notify(&part, 1, urgency);
  }

  std::unique_ptr<fabric::Device> device;
  std::shared_ptr<Recorder> handler = std::make_shared<Recorder>();
  std::shared_ptr<fabric::Channel> channel;
};

// The test is the polling thread of both devices.
class DevicePairTest : public ::testing::Test {
 protected:
  virtual Settings DefaultSettings() const { return FabricSettings(); }
  // Returns how many events there were.
  virtual int PollOne(Side& side) { return side.device == nullptr ? 0 : side.device->Poll(); }
  // Drops the channels.
  virtual void Drop() {
    for (Side* side : {&a_, &b_}) {
      side->channel.reset();
      side->handler.reset();
    }
    Poll();
  }
  void DropDevices() {
    Drop();
    a_.device.reset();
    b_.device.reset();
  }

  void OpenDevices(const Settings& settings) {
    for (Side* side : {&a_, &b_}) {
      const Status opened = fabric::OpenDevice(settings, &side->device);
      ASSERT_TRUE(opened.ok()) << opened.message();
    }
  }
  void OpenDevices() { OpenDevices(DefaultSettings()); }
  static Status OpenChannel(Side* side) {
    side->handler = std::make_shared<Recorder>();
    return side->device->Open(side->handler, &side->channel);
  }
  // Makes new channels between the two.
  void Connect(const fabric::Terms& terms = fabric::Terms()) {
    for (Side* side : {&a_, &b_}) ASSERT_TRUE(OpenChannel(side).ok());
    const Status passive =
        b_.channel->Connect(a_.channel->Address(), fabric::Role::kPassive, terms);
    ASSERT_TRUE(passive.ok()) << passive.message();
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), fabric::Role::kActive, terms).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && b_.handler->connected; }))
        << a_.handler->reason.message() << b_.handler->reason.message();
  }
  void ConnectedPair(const Settings& settings) {
    ASSERT_NO_FATAL_FAILURE(OpenDevices(settings));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  void ConnectedPair() { ConnectedPair(DefaultSettings()); }

  void ExpectToTalk() {
    const size_t a = a_.handler->notes.size();
    const size_t b = b_.handler->notes.size();
    ASSERT_TRUE(a_.Notify("there").ok());
    ASSERT_TRUE(b_.Notify("back").ok());
    EXPECT_TRUE(
        PollUntil([&] { return a_.handler->notes.size() > a && b_.handler->notes.size() > b; }));
  }
  // New channels between the devices work.
  void ExpectToWork() {
    ASSERT_NO_FATAL_FAILURE(Connect());
    ExpectToTalk();
  }

  int Poll() {
    const int events = PollOne(a_);
    return events + PollOne(b_);
  }
  // Leaves the processor to others while nothing happens.
  template <typename Condition>
  bool PollUntil(Condition condition, Nanos timeout = 20 * kSecond) {
    const Nanos deadline = Now() + timeout;
    for (int idle = 0; !condition(); ++idle) {
      if (Now() > deadline) return false;
      if (Poll() > 0) idle = 0;
      if (idle > kIdlePolls) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  // Polls at least so often: on a busy machine all of the time may pass between two polls.
  void PollFor(Nanos interval, int least = 100) {
    const Nanos end = Now() + interval;
    for (int polls = 0; polls < least || Now() < end; ++polls) Poll();
  }

  bool BothClosed() const { return a_.handler->closed && b_.handler->closed; }
  // Both sides notify until they learn of the end.
  bool TalkUntilClosed() {
    return PollUntil([&] {
      for (Side* side : {&a_, &b_}) {
        if (!side->handler->closed) side->Notify("are you there?").IgnoreError();
      }
      return BothClosed();
    });
  }
  void ExpectClosedOnce() {
    PollFor(20 * kMillisecond);
    for (Side* side : {&a_, &b_}) {
      EXPECT_TRUE(side->handler->closed);
      EXPECT_EQ(side->Notify("too late").code(), Code::kUnavailable);
    }
  }

  static std::unique_ptr<fabric::Region> Allocate(
      Side& side, size_t granules = 1, fabric::Access access = fabric::Access::kRemoteReadWrite) {
    std::unique_ptr<fabric::Region> region;
    const size_t length = granules * side.device->RegionGranule();
    const Status status = side.device->Allocate(length, access, /*place=*/nullptr, &region);
    EXPECT_TRUE(status.ok()) << status.message();
    return region;
  }
  // Lets the other side use a region of `side`, and waits until it knows of it.
  void Share(Side& side, const fabric::Region& region) {
    EXPECT_TRUE(side.channel->Share(region.key()).ok());
    Side& other = &side == &a_ ? b_ : a_;
    const size_t before = other.handler->notes.size();
    EXPECT_TRUE(side.Notify("shared").ok());
    EXPECT_TRUE(PollUntil([&] { return other.handler->notes.size() > before; }));
  }
  std::unique_ptr<fabric::Region> Shared(Side& side, size_t granules = 1,
                                         fabric::Access access = fabric::Access::kRemoteReadWrite) {
    std::unique_ptr<fabric::Region> region = Allocate(side, granules, access);
    Share(side, *region);
    return region;
  }

  static constexpr int kIdlePolls = 200;

  Side a_;
  Side b_;
};

}  // namespace rdma_transport::testing
