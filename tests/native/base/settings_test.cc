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
  EXPECT_NE(status.message().find("auto|shm|verbs|libfabric|grpc"), std::string::npos);
}

TEST(Settings, TheDefaultsOfVerbsLeaveTheChoiceToThePort) {
  Settings settings;
  std::vector<std::string> warnings;
  ASSERT_TRUE(Load({}, &settings, &warnings).ok());
  const VerbsSettings& verbs = settings.verbs;
  EXPECT_EQ(verbs.library, "libibverbs.so.1");
  EXPECT_EQ(verbs.devices, "");
  EXPECT_EQ(verbs.gid_index, -1);
  EXPECT_EQ(verbs.mtu, 0u);
  EXPECT_EQ(verbs.service_level, 0);
  EXPECT_EQ(verbs.traffic_class, -1);
  EXPECT_EQ(verbs.pkey, -1);
  EXPECT_EQ(verbs.retry_timeout, 536 * kMillisecond);
  EXPECT_EQ(verbs.retries, 6);
  EXPECT_EQ(verbs.queue_depth, 256);
  EXPECT_EQ(verbs.chunk, 0u);
  EXPECT_EQ(verbs.ring, uint64_t{1} << 20);
  EXPECT_TRUE(verbs.relaxed_ordering);
  EXPECT_EQ(verbs.isolation, Isolation::kAddress);
}

TEST(Settings, WhatVerbsTake) {
  Settings settings;
  std::vector<std::string> warnings;
  const Status status = Load(
      {"RDMA_TRANSPORT_LIBIBVERBS=/opt/lib/libibverbs.so", "RDMA_TRANSPORT_DEVICES=^mlx5_1:2",
       "RDMA_TRANSPORT_GID_INDEX=3", "RDMA_TRANSPORT_MTU=4096", "RDMA_TRANSPORT_SERVICE_LEVEL=15",
       "RDMA_TRANSPORT_TRAFFIC_CLASS=106", "RDMA_TRANSPORT_PKEY=0x8001",
       "RDMA_TRANSPORT_RETRY_TIMEOUT=8796s", "RDMA_TRANSPORT_RETRIES=0",
       "RDMA_TRANSPORT_QUEUE_DEPTH=16", "RDMA_TRANSPORT_CHUNK=4KiB", "RDMA_TRANSPORT_RING=64MiB",
       "RDMA_TRANSPORT_RELAXED_ORDERING=off", "RDMA_TRANSPORT_ISOLATION=off"},
      &settings, &warnings);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(warnings.empty());
  const VerbsSettings& verbs = settings.verbs;
  EXPECT_EQ(verbs.library, "/opt/lib/libibverbs.so");
  EXPECT_EQ(verbs.devices, "^mlx5_1:2");
  EXPECT_EQ(verbs.gid_index, 3);
  EXPECT_EQ(verbs.mtu, 4096u);
  EXPECT_EQ(verbs.service_level, 15);
  EXPECT_EQ(verbs.traffic_class, 106);
  EXPECT_EQ(verbs.pkey, 1) << "the bit of full membership does not count";
  EXPECT_EQ(verbs.retry_timeout, 8796 * kSecond);
  EXPECT_EQ(verbs.retries, 0);
  EXPECT_EQ(verbs.queue_depth, 16);
  EXPECT_EQ(verbs.chunk, 4096u);
  EXPECT_EQ(verbs.ring, uint64_t{64} << 20);
  EXPECT_FALSE(verbs.relaxed_ordering);
  EXPECT_EQ(verbs.isolation, Isolation::kOff);
}

TEST(Settings, WhetherCardsAccessGpus) {
  for (const auto& [text, mode] :
       {std::pair{"auto", GpuDirect::kAuto}, std::pair{"on", GpuDirect::kOn},
        std::pair{"off", GpuDirect::kOff}}) {
    Settings settings;
    std::vector<std::string> warnings;
    ASSERT_TRUE(
        Load({std::string("RDMA_TRANSPORT_GPU_DIRECT=") + text}, &settings, &warnings).ok());
    EXPECT_EQ(settings.gpu_direct, mode);
    EXPECT_EQ(settings.cuda_library, "libcuda.so.1");
  }
  Settings settings;
  std::vector<std::string> warnings;
  ASSERT_TRUE(Load({"RDMA_TRANSPORT_LIBCUDA=/opt/libcuda.so.1"}, &settings, &warnings).ok());
  EXPECT_EQ(settings.gpu_direct, GpuDirect::kAuto);
  EXPECT_EQ(settings.cuda_library, "/opt/libcuda.so.1");
  EXPECT_EQ(Load({"RDMA_TRANSPORT_GPU_DIRECT=maybe"}, &settings, &warnings).code(),
            Code::kInvalidArgument);
}

TEST(Settings, WhatVerbsDoNotTake) {
  const struct {
    const char* entry;
    const char* hint;
  } cases[] = {
      {"RDMA_TRANSPORT_LIBIBVERBS=", "libibverbs.so.1"},
      {"RDMA_TRANSPORT_GID_INDEX=-1", "an integer from 0 to 65535, nor auto"},
      {"RDMA_TRANSPORT_GID_INDEX=65536", "an integer from 0 to 65535"},
      {"RDMA_TRANSPORT_GID_INDEX=3x", "an integer from 0 to 65535"},
      {"RDMA_TRANSPORT_GID_INDEX=", "an integer from 0 to 65535"},
      {"RDMA_TRANSPORT_GID_INDEX= 3", "an integer from 0 to 65535"},
      {"RDMA_TRANSPORT_MTU=1500", "auto|256|512|1024|2048|4096"},
      {"RDMA_TRANSPORT_SERVICE_LEVEL=16", "an integer from 0 to 15"},
      {"RDMA_TRANSPORT_TRAFFIC_CLASS=256", "an integer from 0 to 255"},
      {"RDMA_TRANSPORT_PKEY=0", "from 0x1 to 0x7fff, nor auto"},
      {"RDMA_TRANSPORT_PKEY=0x8000", "from 0x1 to 0x7fff"},
      {"RDMA_TRANSPORT_PKEY=0x", "from 0x1 to 0x7fff"},
      {"RDMA_TRANSPORT_PKEY=7fff", "from 0x1 to 0x7fff"},
      {"RDMA_TRANSPORT_RETRY_TIMEOUT=0", "a duration from 8us to 8796s"},
      {"RDMA_TRANSPORT_RETRY_TIMEOUT=7us", "a duration from 8us to 8796s"},
      {"RDMA_TRANSPORT_RETRY_TIMEOUT=3h", "with its unit"},
      {"RDMA_TRANSPORT_RETRY_TIMEOUT=8797s", "a duration from 8us to 8796s"},
      {"RDMA_TRANSPORT_RETRIES=8", "an integer from 0 to 7"},
      {"RDMA_TRANSPORT_QUEUE_DEPTH=8", "an integer from 16 to 4096"},
      {"RDMA_TRANSPORT_QUEUE_DEPTH=99999999999999999999", "an integer from 16 to 4096"},
      {"RDMA_TRANSPORT_CHUNK=4095", "a size at least 4KiB, nor auto"},
      {"RDMA_TRANSPORT_CHUNK=big", "a size such as"},
      {"RDMA_TRANSPORT_START_TIMEOUT=0", "a duration at least 1s"},
      {"RDMA_TRANSPORT_RING=255KiB", "a size from 256KiB to 64MiB"},
      {"RDMA_TRANSPORT_RING=65MiB", "a size from 256KiB to 64MiB"},
      {"RDMA_TRANSPORT_RELAXED_ORDERING=maybe", "on|off"},
      {"RDMA_TRANSPORT_ISOLATION=peer", "off|address"},
  };
  for (const auto& [entry, hint] : cases) {
    Settings settings;
    std::vector<std::string> warnings;
    const Status status = Load({entry}, &settings, &warnings);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << entry;
    const std::string name = std::string(entry).substr(0, std::string(entry).find('='));
    EXPECT_EQ(status.message().rfind(name + ": ", 0), 0u) << status.message();
    EXPECT_NE(status.message().find(hint), std::string::npos) << status.message();
  }
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
