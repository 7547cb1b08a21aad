// Two verbs devices of this process over the fake library, channels between them, and what their
// handlers heard. Link fake_ibverbs_path to use it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/registry.h"
#include "fabrics.h"
#include "fake_ibverbs/control.h"
#include "recorder.h"

namespace rdma_transport::testing {

// The functions by which the library is disturbed and watched.
struct FakeControl {
  FakeControl() {
    void* library = dlopen(FAKE_IBVERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const auto find = [library](const char* name, auto* function) {
      void* found = library == nullptr ? nullptr : dlsym(library, name);
      if (found == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::abort();
      }
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    };
    find("fake_ibverbs_set", &set);
    find("fake_ibverbs_fail", &fail);
    find("fake_ibverbs_complete_with", &complete_with);
    find("fake_ibverbs_break_path", &break_path);
    find("fake_ibverbs_port_event", &port_event);
    find("fake_ibverbs_device_fatal", &device_fatal);
    find("fake_ibverbs_stats", &stats);
    find("fake_ibverbs_reset", &reset);
    find("fake_ibverbs_regions", &regions);
    find("fake_ibverbs_windows", &windows);
    find("fake_ibverbs_queue_pairs", &queue_pairs);
  }

  decltype(&fake_ibverbs_set) set;
  decltype(&fake_ibverbs_fail) fail;
  decltype(&fake_ibverbs_complete_with) complete_with;
  decltype(&fake_ibverbs_break_path) break_path;
  decltype(&fake_ibverbs_port_event) port_event;
  decltype(&fake_ibverbs_device_fatal) device_fatal;
  decltype(&fake_ibverbs_stats) stats;
  decltype(&fake_ibverbs_reset) reset;
  decltype(&fake_ibverbs_regions) regions;
  decltype(&fake_ibverbs_windows) windows;
  decltype(&fake_ibverbs_queue_pairs) queue_pairs;
};

inline const FakeControl& Fake() {
  static const auto* control = new FakeControl;
  return *control;
}

inline void SetFake(const char* key, const std::string& value) {
  EXPECT_EQ(Fake().set(key, value.c_str()), 0) << key << "=" << value;
}

inline FakeIbverbsStats FakeStats() {
  FakeIbverbsStats stats;
  Fake().stats(&stats);
  return stats;
}

// Queues so short and pieces so small that every limit is met.
inline Settings OnFake() {
  Settings settings = FabricSettings();
  settings.fabric = "verbs";
  settings.verbs.library = FAKE_IBVERBS_LIBRARY;
  settings.verbs.queue_depth = 16;
  settings.verbs.ring = 256 << 10;
  settings.verbs.chunk = 4096;
  return settings;
}

struct VerbsSide {
  Status Notify(const std::string& text, fabric::Urgency urgency = fabric::Urgency::kWake) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    return channel->Notify(&part, 1, urgency);
  }

  std::unique_ptr<fabric::Device> device;
  std::shared_ptr<Recorder> handler;
  std::shared_ptr<fabric::Channel> channel;
};

class VerbsPairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    Fake().reset();
    SetFake("retry_ms", "60");
  }
  // Whatever happened, nothing of the library is left when the devices are gone.
  void TearDown() override {
    Drop();
    a_.device.reset();
    b_.device.reset();
    const FakeIbverbsStats left = FakeStats();
    EXPECT_EQ(left.mws, 0u);
    EXPECT_EQ(left.qps + left.cqs + left.mrs + left.pds + left.channels + left.contexts, 0u);
    EXPECT_EQ(left.cq_overruns, 0u);
    if (!lacks_receives_) {
      EXPECT_EQ(left.rnr_naks_sent, 0u) << "there is a receive for all that may be sent";
    }
    Fake().reset();
  }

  void OpenDevices(const Settings& settings = OnFake()) {
    for (VerbsSide* side : {&a_, &b_}) {
      const Status opened = fabric::OpenDevice(settings, &side->device);
      ASSERT_TRUE(opened.ok()) << opened.message();
    }
  }
  Status OpenChannel(VerbsSide* side) {
    side->handler = std::make_shared<Recorder>();
    return side->device->Open(side->handler, &side->channel);
  }
  // New channels between the two.
  void Connect() {
    ASSERT_TRUE(OpenChannel(&a_).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    const Status passive = b_.channel->Connect(a_.channel->Address(), fabric::Role::kPassive);
    ASSERT_TRUE(passive.ok()) << passive.message();
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), fabric::Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && b_.handler->connected; }))
        << a_.handler->reason.message() << b_.handler->reason.message();
  }
  void ConnectedPair(const Settings& settings = OnFake()) {
    ASSERT_NO_FATAL_FAILURE(OpenDevices(settings));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  // Lets go of the channels, and waits until the devices have done so too.
  void Drop() {
    for (VerbsSide* side : {&a_, &b_}) {
      side->channel.reset();
      side->handler.reset();
    }
    if (a_.device == nullptr || b_.device == nullptr) return;
    EXPECT_TRUE(PollUntil([] { return FakeStats().qps == 0; })) << FakeStats().qps << " left";
    Poll();
  }
  void ExpectNothingLeft() {
    Drop();
    EXPECT_EQ(FakeStats().mrs, 0u);
  }
  void ExpectToWork() {
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_TRUE(a_.Notify("there").ok());
    ASSERT_TRUE(b_.Notify("back").ok());
    EXPECT_TRUE(
        PollUntil([&] { return a_.handler->notes.size() + b_.handler->notes.size() == 2; }));
  }

  void Poll() {
    a_.device->Poll();
    b_.device->Poll();
  }
  template <typename Condition>
  bool PollUntil(Condition condition, Nanos patience = 10 * kSecond) {
    const Nanos deadline = Now() + patience;
    while (!condition()) {
      if (Now() > deadline) return false;
      Poll();
    }
    return true;
  }
  bool BothClosed() const { return a_.handler->closed && b_.handler->closed; }
  // Both sides try to say something until they have heard that it is over.
  bool TalkUntilClosed() {
    return PollUntil([&] {
      for (VerbsSide* side : {&a_, &b_}) {
        if (!side->handler->closed) side->Notify("are you there?").IgnoreError();
      }
      return BothClosed();
    });
  }
  void ExpectClosedOnce() {
    for (int i = 0; i < 3; ++i) Poll();
    for (VerbsSide* side : {&a_, &b_}) {
      EXPECT_TRUE(side->handler->closed);
      EXPECT_EQ(side->handler->reason.code(), Code::kUnavailable);
      EXPECT_EQ(side->Notify("too late").code(), Code::kUnavailable);
    }
  }
  std::unique_ptr<fabric::Region> Allocate(VerbsSide& side, size_t granules = 1) {
    std::unique_ptr<fabric::Region> region;
    const size_t length = granules * side.device->RegionGranule();
    const Status status = side.device->Allocate(length, fabric::Access::kRemoteReadWrite,
                                                /*place=*/nullptr, &region);
    EXPECT_TRUE(status.ok()) << status.message();
    return region;
  }
  // Memory of `side` that the other one may use.
  std::unique_ptr<fabric::Region> Shared(VerbsSide& side) {
    std::unique_ptr<fabric::Region> region = Allocate(side);
    EXPECT_TRUE(side.channel->Share(region->key()).ok());
    EXPECT_TRUE(side.channel->Flush().ok());
    VerbsSide& other = &side == &a_ ? b_ : a_;
    EXPECT_TRUE(side.Notify("shared").ok());
    const size_t before = other.handler->notes.size();
    EXPECT_TRUE(PollUntil([&] { return other.handler->notes.size() > before; }));
    return region;
  }

  bool lacks_receives_ = false;  // a peer that is none of ours
  VerbsSide a_;
  VerbsSide b_;
};

inline void ExpectHas(const Status& status, const std::string& part) {
  EXPECT_NE(status.message().find(part), std::string::npos)
      << "no '" << part << "' in: " << status.message();
}
inline void ExpectLacks(const Status& status, const std::string& part) {
  EXPECT_EQ(status.message().find(part), std::string::npos)
      << "'" << part << "' in: " << status.message();
}

}  // namespace rdma_transport::testing
