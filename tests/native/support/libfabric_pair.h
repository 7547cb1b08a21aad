// Two libfabric devices of this process over the library that imitates other providers. Link
// faulty_libfabric_path to use it.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "device_pair.h"
#include "faulty_libfabric/control.h"
#include "messages.h"

namespace rdma_transport::testing {

// The functions by which the library is disturbed and watched.
struct FaultyControl {
  FaultyControl() {
    void* library = dlopen(FAULTY_LIBFABRIC_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    Find(library, "faulty_libfabric_set", &set);
    Find(library, "faulty_libfabric_reset", &reset);
    Find(library, "faulty_libfabric_counters", &counters);
    Find(library, "faulty_libfabric_fail_next", &fail_next);
    Find(library, "faulty_libfabric_lose_next", &lose_next);
    Find(library, "faulty_libfabric_hold_writes", &hold_writes);
    Find(library, "faulty_libfabric_eagain_for", &eagain_for);
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

// Providers that differ from TCP's: as far as they can, and as CXI's and EFA's do.
constexpr char kUnorderedProvider[] =
    "order=none delay_us=300 cq_data=4 mr=prov_key+virt_addr+local+allocated+endpoint";
constexpr char kCxi[] = "order=none delay_us=300 writedata=off mr=prov_key+endpoint+allocated";
constexpr char kEfa[] =
    "order=none delay_us=300 cq_data=4 rma_event=off wait=none tx_size=64 mr_key_size=4 "
    "mr=prov_key+virt_addr+local+allocated";

// Two cards of EFA on each side.
constexpr char kTwoCards[] =
    "provider=efa nics=100+100 order=none delay_us=300 cq_data=4 rma_event=off wait=none "
    "mr_key_size=4 mr=prov_key+virt_addr+local+allocated";

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

inline Settings OnTwoCards() {
  Settings settings = OnFaulty();
  settings.libfabric.provider = "efa";
  settings.libfabric.interface = "";
  return settings;
}

class LibfabricPairTest : public DevicePairTest {
 protected:
  Settings DefaultSettings() const override { return OnFaulty(); }
  void SetUp() override {
    SetLogLevel(LogLevel::kOff);
    Faulty().reset();
  }
  // Whatever happened, nothing of the library is left when the devices are gone.
  void TearDown() override {
    DropDevices();
    const FaultyLibfabricCounters left = FaultyCounters();
    EXPECT_EQ(left.endpoints, 0u);
    EXPECT_EQ(left.regions, 0u);
    EXPECT_EQ(left.fabrics + left.domains + left.completion_queues + left.address_vectors, 0u);
    EXPECT_EQ(left.registered_bytes, 0u);
    EXPECT_EQ(left.too_large + left.bad_data + left.bad_descriptor, 0u)
        << "what is not right for this provider was asked of it";
    Faulty().reset();
  }
  // As a polling thread does, which sleeps when there is nothing to do.
  int PollOne(Side& side) override {
    const int events = DevicePairTest::PollOne(side);
    if (side.device != nullptr && events == 0) side.device->ArmNotification();
    return events;
  }
};

}  // namespace rdma_transport::testing
