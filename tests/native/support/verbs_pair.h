// Two verbs devices of this process over the fake library. Link fake_ibverbs_path to use it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device_pair.h"
#include "fabric/verbs/device.h"
#include "fake_ibverbs/control.h"
#include "messages.h"

namespace rdma_transport::testing {

// The functions by which the library is disturbed and watched.
struct FakeControl {
  FakeControl() {
    void* library = dlopen(FAKE_IBVERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    Find(library, "fake_ibverbs_set", &set);
    Find(library, "fake_ibverbs_fail", &fail);
    Find(library, "fake_ibverbs_complete_with", &complete_with);
    Find(library, "fake_ibverbs_break_path", &break_path);
    Find(library, "fake_ibverbs_port_event", &port_event);
    Find(library, "fake_ibverbs_device_fatal", &device_fatal);
    Find(library, "fake_ibverbs_stats", &stats);
    Find(library, "fake_ibverbs_reset", &reset);
    Find(library, "fake_ibverbs_port_bytes", &port_bytes);
    Find(library, "fake_ibverbs_regions", &regions);
    Find(library, "fake_ibverbs_queue_pairs", &queue_pairs);
  }

  decltype(&fake_ibverbs_set) set;
  decltype(&fake_ibverbs_fail) fail;
  decltype(&fake_ibverbs_complete_with) complete_with;
  decltype(&fake_ibverbs_break_path) break_path;
  decltype(&fake_ibverbs_port_event) port_event;
  decltype(&fake_ibverbs_device_fatal) device_fatal;
  decltype(&fake_ibverbs_stats) stats;
  decltype(&fake_ibverbs_reset) reset;
  decltype(&fake_ibverbs_port_bytes) port_bytes;
  decltype(&fake_ibverbs_regions) regions;
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
  settings.verbs.ports = 8;
  settings.verbs.queue_depth = 16;
  settings.verbs.chunk = 4096;
  return settings;
}

// Opens the preferred port alone.
inline Status OpenPlain(const Settings& settings, std::unique_ptr<fabric::Device>* device) {
  std::vector<std::unique_ptr<fabric::Device>> ports;
  RDMA_RETURN_IF_ERROR(fabric::verbs::VerbsDevice::OpenPorts(settings, &ports));
  *device = std::move(ports.front());
  return OkStatus();
}

class VerbsPairTest : public DevicePairTest {
 protected:
  Settings DefaultSettings() const override { return OnFake(); }
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    Fake().reset();
    SetFake("retry_ms", "60");
  }
  // Whatever happened, nothing of the library is left when the devices are gone.
  void TearDown() override {
    DropDevices();
    const FakeIbverbsStats left = FakeStats();
    EXPECT_EQ(left.qps + left.cqs + left.mrs + left.pds + left.channels + left.contexts, 0u);
    EXPECT_EQ(left.cq_overruns, 0u);
    if (!lacks_receives_) {
      EXPECT_EQ(left.rnr_naks_sent, 0u) << "there is a receive for all that may be sent";
    }
    Fake().reset();
  }
  // Also waits until the devices have dropped the channels.
  void Drop() override {
    DevicePairTest::Drop();
    if (a_.device == nullptr || b_.device == nullptr) return;
    EXPECT_TRUE(PollUntil([] { return FakeStats().qps == 0; })) << FakeStats().qps << " left";
    Poll();
  }
  void ExpectClosedOnce() {
    DevicePairTest::ExpectClosedOnce();
    for (Side* side : {&a_, &b_}) EXPECT_EQ(side->handler->reason.code(), Code::kUnavailable);
  }
  void ExpectNothingLeft() {
    Drop();
    EXPECT_EQ(FakeStats().mrs, 0u);
  }

  bool lacks_receives_ = false;  // a peer that is none of ours
};

}  // namespace rdma_transport::testing
