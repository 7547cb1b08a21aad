// What a device makes of a provider's limits: its messages, and how it sleeps.

#include "fabric/libfabric/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::FaultyCounters;
using testing::OnFaulty;
using testing::SetFaulty;

using LibfabricDeviceTest = testing::LibfabricPairTest;

TEST_F(LibfabricDeviceTest, ADeviceWithoutMemoryForMessagesIsAnError) {
  SetFaulty("mr=local+prov_key mr_fail=1");
  std::unique_ptr<Device> device;
  const Status opened = OpenDevice(OnFaulty(), &device);
  EXPECT_EQ(opened.code(), Code::kResourceExhausted) << opened.message();
  SetFaulty("mr_fail=0");
}

TEST_F(LibfabricDeviceTest, MessagesThatAreTooShortAreRefusedAtOnce) {
  SetFaulty("max_msg=1000");
  std::unique_ptr<Device> device;
  const Status opened = OpenDevice(OnFaulty(), &device);
  EXPECT_FALSE(opened.ok());
  testing::ExpectHas(opened, "its messages are too short");
}

TEST_F(LibfabricDeviceTest, TransfersKeepToTheLongestMessage) {
  SetFaulty("max_msg=20000");
  Settings settings = OnFaulty();
  settings.verbs.chunk = 0;
  ConnectedPair(settings);
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (size_t i = 0; i < 100'001; ++i) local->address()[i] = static_cast<char>(i / 251);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 7, 100'001}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }));
  EXPECT_EQ(std::memcmp(remote->address() + 7, local->address(), 100'001), 0);
  EXPECT_EQ(FaultyCounters().writes, 6u);
}

TEST_F(LibfabricDeviceTest, WithoutADescriptorToWaitOnASleeperIsStillWoken) {
  SetFaulty("wait=none");
  ConnectedPair();
  while (b_.device->Poll() > 0 || !b_.device->ArmNotification()) {
  }
  ASSERT_TRUE(a_.Notify("wake").ok());
  const Nanos deadline = Now() + 20 * kSecond;
  while (b_.handler->notes.empty() && Now() < deadline) {
    PollOne(a_);
    b_.device->Sleep(Now() + 20 * kSecond);
    if (b_.device->Poll() == 0) b_.device->ArmNotification();
  }
  EXPECT_EQ(b_.handler->notes.size(), 1u);
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
