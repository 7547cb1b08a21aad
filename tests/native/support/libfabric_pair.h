// Two libfabric devices of this process over the library that imitates other providers, and
// channels between them. Link faulty_libfabric_path to use it.
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
#include "base/log.h"
#include "fabric/registry.h"
#include "fabrics.h"
#include "faulty_libfabric/control.h"
#include "recorder.h"

namespace rdma_transport::testing {

// The functions by which the library is disturbed and watched.
struct FaultyControl {
  FaultyControl() {
    void* library = dlopen(FAULTY_LIBFABRIC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const auto find = [library](const char* name, auto* function) {
      void* found = library == nullptr ? nullptr : dlsym(library, name);
      if (found == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        std::abort();
      }
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(found);
    };
    find("faulty_libfabric_set", &set);
    find("faulty_libfabric_reset", &reset);
    find("faulty_libfabric_counters", &counters);
    find("faulty_libfabric_fail_next", &fail_next);
    find("faulty_libfabric_lose_next", &lose_next);
    find("faulty_libfabric_hold_writes", &hold_writes);
    find("faulty_libfabric_eagain_for", &eagain_for);
  }

  decltype(&faulty_libfabric_set) set;
  decltype(&faulty_libfabric_reset) reset;
  decltype(&faulty_libfabric_counters) counters;
  decltype(&faulty_libfabric_fail_next) fail_next;
  decltype(&faulty_libfabric_lose_next) lose_next;
  decltype(&faulty_libfabric_hold_writes) hold_writes;
  decltype(&faulty_libfabric_eagain_for) eagain_for;
};

inline const FaultyControl& Faulty() {
  static const auto* control = new FaultyControl;
  return *control;
}

// Sets keys of the library, as in the environment variable: "order=none delay_us=500".
inline void SetFaulty(const std::string& pairs) {
  size_t at = 0;
  while (at < pairs.size()) {
    const size_t end = std::min(pairs.find(' ', at), pairs.size());
    const size_t equals = pairs.find('=', at);
    ASSERT_LT(equals, end) << pairs;
    const std::string key = pairs.substr(at, equals - at);
    const std::string value = pairs.substr(equals + 1, end - equals - 1);
    EXPECT_EQ(Faulty().set(key.c_str(), value.c_str()), 0) << key << "=" << value;
    at = end + 1;
  }
}

inline FaultyLibfabricCounters FaultyCounters() {
  FaultyLibfabricCounters counters;
  Faulty().counters(&counters);
  return counters;
}

// Providers that differ as far as they can from TCP's.
constexpr char kUnorderedProvider[] =
    "order=none delay_us=300 cq_data=4 mr=prov_key+virt_addr+local+allocated+endpoint";
constexpr char kNoRemoteData[] =
    "order=sas delay_us=300 cq_data=0 rma_event=off mr=prov_key+endpoint+allocated";

inline Settings OnFaulty() {
  Settings settings = FabricSettings();
  settings.fabric = "libfabric";
  settings.libfabric.library = FAULTY_LIBFABRIC_LIBRARY;
  settings.libfabric.provider = "tcp";
  settings.libfabric.interface = "lo";
  settings.verbs.ring = 256 << 10;  // 16 messages
  settings.verbs.chunk = 4096;
  return settings;
}

struct LibfabricSide {
  Status Notify(const std::string& text, fabric::Urgency urgency = fabric::Urgency::kWake) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    return channel->Notify(&part, 1, urgency);
  }

  std::unique_ptr<fabric::Device> device;
  std::shared_ptr<Recorder> handler;
  std::shared_ptr<fabric::Channel> channel;
};

class LibfabricPairTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    Faulty().reset();
  }
  // Whatever happened, nothing of the library is left when the devices are gone.
  void TearDown() override {
    Drop();
    a_.device.reset();
    b_.device.reset();
    const FaultyLibfabricCounters left = FaultyCounters();
    EXPECT_EQ(left.endpoints, 0u);
    EXPECT_EQ(left.regions, 0u);
    EXPECT_EQ(left.fabrics + left.domains + left.completion_queues + left.address_vectors, 0u);
    EXPECT_EQ(left.registered_bytes, 0u);
    EXPECT_EQ(left.too_large + left.bad_data + left.bad_descriptor, 0u)
        << "what is not right for this provider was asked of it";
    Faulty().reset();
  }

  void OpenDevices(const Settings& settings = OnFaulty()) {
    for (LibfabricSide* side : {&a_, &b_}) {
      const Status opened = fabric::OpenDevice(settings, &side->device);
      ASSERT_TRUE(opened.ok()) << opened.message();
    }
  }
  static Status OpenChannel(LibfabricSide* side) {
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
  void ConnectedPair(const Settings& settings = OnFaulty()) {
    ASSERT_NO_FATAL_FAILURE(OpenDevices(settings));
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  // Lets go of the channels.
  void Drop() {
    for (LibfabricSide* side : {&a_, &b_}) {
      side->channel.reset();
      side->handler.reset();
    }
    Poll();
  }
  // The two can still, or again, talk to each other.
  void ExpectToWork() {
    ASSERT_NO_FATAL_FAILURE(Connect());
    ExpectToTalk();
  }
  void ExpectToTalk() {
    const size_t a = a_.handler->notes.size();
    const size_t b = b_.handler->notes.size();
    ASSERT_TRUE(a_.Notify("there").ok());
    ASSERT_TRUE(b_.Notify("back").ok());
    EXPECT_TRUE(
        PollUntil([&] { return a_.handler->notes.size() > a && b_.handler->notes.size() > b; }));
  }

  // As a polling thread does, which sleeps when there is nothing to do.
  static void Poll(LibfabricSide& side) {
    if (side.device != nullptr && side.device->Poll() == 0) side.device->ArmNotification();
  }
  void Poll() {
    Poll(a_);
    Poll(b_);
  }
  template <typename Condition>
  bool PollUntil(Condition condition, Nanos patience = 20 * kSecond) {
    const Nanos deadline = Now() + patience;
    while (!condition()) {
      if (Now() > deadline) return false;
      Poll();
    }
    return true;
  }
  // Polls for a while.
  void PollFor(Nanos interval) {
    PollUntil([] { return false; }, interval);
  }
  bool BothClosed() const { return a_.handler->closed && b_.handler->closed; }
  static std::unique_ptr<fabric::Region> Allocate(
      LibfabricSide& side, size_t granules = 1,
      fabric::Access access = fabric::Access::kRemoteReadWrite) {
    std::unique_ptr<fabric::Region> region;
    const size_t length = granules * side.device->RegionGranule();
    const Status status = side.device->Allocate(length, access, /*place=*/nullptr, &region);
    EXPECT_TRUE(status.ok()) << status.message();
    return region;
  }
  // Lets the other side use a region of `side`.
  void Share(LibfabricSide& side, const fabric::Region& region) {
    EXPECT_TRUE(side.channel->Share(region.key()).ok());
    LibfabricSide& other = &side == &a_ ? b_ : a_;
    const size_t before = other.handler->notes.size();
    EXPECT_TRUE(side.Notify("shared").ok());
    EXPECT_TRUE(PollUntil([&] { return other.handler->notes.size() > before; }));
  }
  std::unique_ptr<fabric::Region> Shared(LibfabricSide& side, size_t granules = 1) {
    std::unique_ptr<fabric::Region> region = Allocate(side, granules);
    Share(side, *region);
    return region;
  }

  LibfabricSide a_;
  LibfabricSide b_;
};

inline void ExpectMessage(const Status& status, const std::string& part) {
  EXPECT_NE(status.message().find(part), std::string::npos)
      << "no '" << part << "' in: " << status.message();
}

}  // namespace rdma_transport::testing
