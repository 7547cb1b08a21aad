// What a device makes of a provider's limits: its messages, and how it sleeps.

#include "fabric/libfabric/device.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::FaultyCounters;
using testing::OnFaulty;
using testing::SetFaulty;

// How often the threads of this process were woken by an eventfd and have not noticed it yet.
uint64_t UnreadWakes() {
  uint64_t unread = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream lines(entry.path());
    std::string word;
    uint64_t count = 0;
    while (lines >> word) {
      if (word == "eventfd-count:" && lines >> std::hex >> count) unread += count;
    }
  }
  return unread;
}

class LibfabricDeviceTest : public testing::LibfabricPairTest {
 protected:
  static void FallAsleep(testing::Side& side) {
    while (side.device->Poll() > 0 || !side.device->ArmNotification()) {
    }
  }
};

TEST_F(LibfabricDeviceTest, ADeviceWithoutMemoryForMessagesIsAnError) {
  SetFaulty("mr=local+prov_key mr_fail=1");
  std::unique_ptr<Device> device;
  const Status opened = OpenDevice(OnFaulty(), &device);
  EXPECT_EQ(opened.code(), Code::kResourceExhausted) << opened.message();
  SetFaulty("mr_fail=0");
}

// A machine that stops this thread for long between the two may send them apart, but not each time.
TEST_F(LibfabricDeviceTest, ALazyNotificationGoesWithTheNextOneThatWakes) {
  ConnectedPair();
  ASSERT_TRUE(PollUntil([&] { return a_.channel->backlog().used_bytes == 0; }));
  constexpr size_t kTries = 5;
  for (size_t i = 0; i < kTries; ++i) {
    ASSERT_TRUE(a_.Notify("lazy", Urgency::kLazy).ok());
    for (int polls = 0; polls < 3; ++polls) a_.device->Poll();
    ASSERT_TRUE(a_.Notify("wakes").ok());
  }
  EXPECT_LT(a_.channel->backlog().used_bytes, 2 * kTries * Domain::frame_bytes());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 2 * kTries; }));
  for (size_t i = 0; i < kTries; ++i) {
    EXPECT_EQ(b_.handler->notes[2 * i], "lazy");
    EXPECT_EQ(b_.handler->notes[2 * i + 1], "wakes");
  }
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

TEST_F(LibfabricDeviceTest, AWriteWakesNobodyForItsEndIfThatMayComeLate) {
  for (const bool late : {false, true}) {
    DropDevices();
    ASSERT_NO_FATAL_FAILURE(OpenDevices());
    ASSERT_NO_FATAL_FAILURE(Connect([late](Channel* channel) {
      if (late) channel->DelayWriteEnds();
    }));
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    FallAsleep(a_);
    const uint64_t before = UnreadWakes();
    ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 64}, 1).ok());
    EXPECT_EQ(UnreadWakes() > before, !late);
    // Nothing comes from the peer, whose thread does not poll.
    const Nanos deadline = Now() + 20 * kSecond;
    while (a_.handler->transfers.empty() && Now() < deadline) {
      a_.device->Sleep(deadline);
      FallAsleep(a_);
    }
    EXPECT_EQ(a_.handler->transfers.size(), 1u);
  }
}

TEST_F(LibfabricDeviceTest, ANotificationThatWaitsForTheEndOfAWriteIsNotLate) {
  SetFaulty(testing::kNoRemoteData);
  ASSERT_NO_FATAL_FAILURE(OpenDevices());
  ASSERT_NO_FATAL_FAILURE(Connect([](Channel* channel) { channel->DelayWriteEnds(); }));
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  FallAsleep(a_);
  const uint64_t before = UnreadWakes();
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 64}, 1).ok());
  EXPECT_GT(UnreadWakes(), before);
}

TEST_F(LibfabricDeviceTest, ASmallWritePassesALargeOne) {
  constexpr uint64_t kSmall = 4096;
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  const uint64_t large = local->length() - kSmall;
  for (size_t i = 0; i < local->length(); ++i) local->address()[i] = static_cast<char>(i / 251);
  const auto notify = [&](const char* text, After after) {
    const iovec part = {const_cast<char*>(text), std::strlen(text)};
    ASSERT_TRUE(a_.channel->Notify(&part, 1, Urgency::kWake, nullptr, after).ok());
  };
  // Pieces end when a polls, so some of the large write waits until then.
  ASSERT_TRUE(a_.channel->Write(local->address() + kSmall, {remote->key(), kSmall, large}, 1).ok());
  notify("large", After::Write(1));
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, kSmall}, 2).ok());
  notify("small", After::Write(2));
  notify("all", After::Everything());
  notify("later", After::Nothing());
  EXPECT_GT(a_.channel->backlog().waiting_bytes, 0u);
  ASSERT_TRUE(PollUntil([&] {
    return b_.handler->notes.size() == 4 && a_.handler->delivered == 4;
  })) << a_.handler->reason.message();
  EXPECT_EQ(b_.handler->notes, (decltype(b_.handler->notes){"small", "large", "all", "later"}));
  EXPECT_EQ(a_.handler->transfers.size(), 2u);
  EXPECT_EQ(std::memcmp(remote->address(), local->address(), local->length()), 0);
}

TEST_F(LibfabricDeviceTest, WithoutADescriptorToWaitOnASleeperIsStillWoken) {
  SetFaulty("wait=none");
  ConnectedPair();
  FallAsleep(b_);
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
