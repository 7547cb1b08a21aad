// Random graphs of edges, and steps over fabrics that fail at random (faulty_fabric/). Each tensor
// arrives once with the bytes that it had when it was sent, or its step hears an error; nothing of
// a step surfaces in another; and in the end everything is back.
//
// A failure names its seed. CHAOS_SEED=n runs that one, CHAOS_SEEDS=n as many from there on.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "chaos_world.h"
#include "fabrics.h"

namespace rdma_transport::testing {
namespace {

// Sanitizers take their time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 2;
#else
constexpr uint64_t kSeeds = 4;
#endif

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

struct Weather {
  const char* name;
  bool card;
  bool refusals;
  bool breaks;
  bool stops;
};

class ChaosTest : public ::testing::TestWithParam<Weather> {
 protected:
  void SetUp() override {
    GlobalCounters().outstanding_tensors.store(0);
    Violations::Take();
  }
};

TEST_P(ChaosTest, WhateverHappensValuesAreRightAndEverybodyHears) {
  const Weather& weather = GetParam();
  if (weather.card && OnCard()) GTEST_SKIP() << "there is a card already";
  const uint64_t first = FromEnvironment("CHAOS_SEED", 1);
  const uint64_t count =
      FromEnvironment("CHAOS_SEEDS", std::getenv("CHAOS_SEED") != nullptr ? 1 : kSeeds);
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("CHAOS_SEED=" + std::to_string(seed));
    ChaosWorld world({seed, weather.card, weather.refusals, weather.breaks, weather.stops});
    world.Run();
    const auto complaints = world.complaints().Get();
    for (const std::string& complaint : complaints) ADD_FAILURE() << complaint;
    const auto violations = Violations::Take();
    for (const std::string& violation : violations) ADD_FAILURE() << violation;
    if (std::getenv("CHAOS_TELL") != nullptr || !complaints.empty() || !violations.empty()) {
      std::printf("seed %lu: %s\n", seed, world.Summary().c_str());
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Weather, ChaosTest,
                         ::testing::Values(Weather{"Delays", false, false, false, false},
                                           Weather{"Refusals", false, true, false, false},
                                           Weather{"Breaks", false, true, true, false},
                                           Weather{"Stops", false, false, false, true},
                                           Weather{"CardDelays", true, false, false, false},
                                           Weather{"CardRefusals", true, true, false, false},
                                           Weather{"CardBreaks", true, true, true, false},
                                           Weather{"CardStops", true, false, false, true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rdma_transport::testing
