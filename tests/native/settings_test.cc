#include "base/settings.h"

#include <gtest/gtest.h>

namespace rdma_transport {
namespace {

Status Load(std::vector<std::string> environment, Settings* settings,
            std::vector<std::string>* warnings) {
  std::vector<char*> pointers;
  for (std::string& entry : environment) pointers.push_back(entry.data());
  pointers.push_back(nullptr);
  return LoadSettings(pointers.data(), settings, warnings);
}

TEST(Settings, EveryDefaultInTheTableIsValid) {
  Settings settings;
  std::vector<std::string> warnings;
  EXPECT_TRUE(Load({}, &settings, &warnings).ok());
  EXPECT_EQ(settings.inline_max, 4096u);
  EXPECT_EQ(settings.peer_timeout, 8 * kSecond);
  EXPECT_TRUE(warnings.empty());
}

TEST(Settings, SizesAndDurationsHaveUnits) {
  uint64_t bytes = 0;
  EXPECT_TRUE(ParseSize("1.5 GiB", &bytes).ok());
  EXPECT_EQ(bytes, uint64_t{3} << 29);
  EXPECT_TRUE(ParseSize("64kb", &bytes).ok());
  EXPECT_EQ(bytes, 64000u);
  Nanos duration = 0;
  EXPECT_TRUE(ParseDuration("20us", &duration).ok());
  EXPECT_EQ(duration, 20000);
  EXPECT_TRUE(ParseDuration("0", &duration).ok());
  EXPECT_FALSE(ParseDuration("20", &duration).ok());
  for (const char* bad : {"", "x", "-1", "1e99", "nan", "4 parsecs"}) {
    EXPECT_FALSE(ParseSize(bad, &bytes).ok()) << bad;
    EXPECT_FALSE(ParseDuration(bad, &duration).ok()) << bad;
  }
}

TEST(Settings, ABadValueNamesTheSettingAndWhatItTakes) {
  Settings settings;
  std::vector<std::string> warnings;
  const Status status = Load({"RDMA_TRANSPORT_FABRIC=carrier-pigeon"}, &settings, &warnings);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("RDMA_TRANSPORT_FABRIC"), std::string::npos);
  EXPECT_NE(status.message().find("auto|shm|verbs|grpc"), std::string::npos);
}

TEST(Settings, AnUnknownNameIsAWarningWithTheNearestKnownOne) {
  Settings settings;
  std::vector<std::string> warnings;
  EXPECT_TRUE(Load({"RDMA_TRANSPORT_FABRICK=shm", "HOME=/"}, &settings, &warnings).ok());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("did you mean RDMA_TRANSPORT_FABRIC?"), std::string::npos);
}

}  // namespace
}  // namespace rdma_transport
