// What a device makes of a provider's limits: its messages, and how it sleeps.

#include "fabric/libfabric/device.h"

#include <gtest/gtest.h>
#include <sys/timerfd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fabric/libfabric/providers.h"
#include "fabric/libfabric/sockets.h"
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

TEST_F(LibfabricDeviceTest, AProviderThatFailsToWriteToItselfIsUsedWithoutRemoteData) {
  ASSERT_EQ(testing::Faulty().fail_next("write"), 0);
  ASSERT_NO_FATAL_FAILURE(ConnectedPair());
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  std::strcpy(local->address(), "new");
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 100}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }));
  EXPECT_STREQ(remote->address(), "new");
}

TEST_F(LibfabricDeviceTest, AWriteThatReportsDeliveryNeedsNoRemoteData) {
  for (const char* provider : {testing::kCxi, testing::kEfa}) {
    DropDevices();
    SetFaulty(provider);
    ASSERT_NO_FATAL_FAILURE(OpenDevices());
    ASSERT_NO_FATAL_FAILURE(Connect({"", WriteEnd::kDelivered}));
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    std::strcpy(local->address(), "new");
    ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 100}, 1).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
    EXPECT_STREQ(remote->address(), "new");
  }
}

// A newer library moves the bytes of writes without the processors on EFA's cards.
TEST_F(LibfabricDeviceTest, TheNewestInterfaceIsAskedFor) {
  SetFaulty("version=1.22 rma_since=1.18");
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 100}, 1).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_GT(FaultyCounters().writes, 0u);
  EXPECT_EQ(FaultyCounters().emulated, 0u);
}

// EFA has a descriptor to wait on if nothing asks it to serve this host, too.
TEST_F(LibfabricDeviceTest, EfaHasADescriptorToWaitOn) {
  SetFaulty("provider=efa wait=remote");
  Settings settings = OnFaulty();
  settings.libfabric.provider = "efa";
  ConnectedPair(settings);
  EXPECT_GT(FaultyCounters().trywaits, 0u);
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
  const uint64_t before = FaultyCounters().writes;
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (size_t i = 0; i < 100'001; ++i) local->address()[i] = static_cast<char>(i / 251);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 7, 100'001}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }));
  EXPECT_EQ(std::memcmp(remote->address() + 7, local->address(), 100'001), 0);
  EXPECT_GE(FaultyCounters().writes - before, 6u);
}

TEST_F(LibfabricDeviceTest, AWriteWakesNobodyForItsEndIfThatMayComeLate) {
  for (const bool late : {false, true}) {
    DropDevices();
    ASSERT_NO_FATAL_FAILURE(OpenDevices());
    ASSERT_NO_FATAL_FAILURE(Connect({"", late ? WriteEnd::kLate : WriteEnd::kReusable}));
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
  SetFaulty(testing::kCxi);
  ASSERT_NO_FATAL_FAILURE(OpenDevices());
  ASSERT_NO_FATAL_FAILURE(Connect({"", WriteEnd::kLate}));
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  FallAsleep(a_);
  const uint64_t before = UnreadWakes();
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 64}, 1).ok());
  EXPECT_GT(UnreadWakes(), before);
}

TEST_F(LibfabricDeviceTest, ASmallWritePassesALargeOne) {
  constexpr uint64_t kSmall = 1024;  // a quarter of a piece
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

// An answer that follows what this thread sends comes soon, however long the silence was before.
TEST_F(LibfabricDeviceTest, WithoutADescriptorToWaitOnASleeperThatSendsSleepsShortly) {
  SetFaulty("wait=none");
  ConnectedPair();
  PollFor(100 * kMillisecond);
  FallAsleep(a_);
  a_.device->Sleep(Now() + 20 * kSecond);  // the timer of the long silence
  FallAsleep(a_);
  ASSERT_TRUE(a_.Notify("ask").ok());
  for (const int descriptor : WatchedBy(a_.device->WaitDescriptor())) {
    itimerspec left = {};
    if (timerfd_gettime(descriptor, &left) != 0) continue;
    EXPECT_LE(left.it_value.tv_sec * kSecond + left.it_value.tv_nsec, 20 * kMicrosecond);
  }
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
