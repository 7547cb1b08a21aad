// What every fabric must do. A new fabric adds itself to the list at the end.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fabric/registry.h"

namespace rdma_transport::fabric {
namespace {

struct Recorder : ChannelHandler {
  void OnConnected() override { connected = true; }
  void OnNotify(const char* data, size_t length) override { notes.emplace_back(data, length); }
  void OnTransfer(uint64_t cookie, const Status& status) override {
    transfers.emplace_back(cookie, status);
  }
  void OnClosed(const Status& status) override {
    closed = true;
    reason = status;
  }
  bool connected = false;
  bool closed = false;
  Status reason;
  std::vector<std::string> notes;
  std::vector<std::pair<uint64_t, Status>> transfers;
};

struct Side {
  std::unique_ptr<Device> device;
  std::shared_ptr<Recorder> handler = std::make_shared<Recorder>();
  std::shared_ptr<Channel> channel;
};

class FabricTest : public ::testing::TestWithParam<FabricChoice> {
 protected:
  void SetUp() override {
    for (Side* side : {&a_, &b_}) {
      ASSERT_TRUE(OpenDevice(GetParam(), &side->device).ok());
      ASSERT_TRUE(side->device->Open(side->handler, &side->channel).ok());
    }
    ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && b_.handler->connected; }));
  }
  void TearDown() override {
    a_.channel.reset();
    b_.channel.reset();
    a_.device->Poll();
    b_.device->Poll();
  }

  template <typename Condition>
  bool PollUntil(Condition condition) {
    const Nanos deadline = Now() + 20 * kSecond;
    while (!condition()) {
      a_.device->Poll();
      b_.device->Poll();
      if (Now() > deadline) return false;
    }
    return true;
  }

  static Status Notify(Side& side, const std::string& text) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    return side.channel->Notify(&part, 1, Urgency::kWake);
  }

  std::unique_ptr<Region> Shared(Side& side, Access access) {
    std::unique_ptr<Region> region;
    EXPECT_TRUE(side.device->Allocate(side.device->RegionGranule(), access, nullptr, &region).ok());
    EXPECT_TRUE(side.channel->Share(region->key()).ok());
    return region;
  }

  Side a_;
  Side b_;
};

TEST_P(FabricTest, NotificationsComeInOrderHoweverManyThereAre) {
  constexpr int kCount = 5000;
  for (int i = 0; i < kCount; ++i) {
    // Far more than a ring holds, of lengths that wrap at every place.
    ASSERT_TRUE(Notify(a_, std::to_string(i) + std::string(i % 700, '.')).ok());
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == kCount; }));
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(b_.handler->notes[i], std::to_string(i) + std::string(i % 700, '.'));
  }
}

TEST_P(FabricTest, SendersOnManyThreadsLoseNothing) {
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(Notify(a_, std::string(1, 'a' + t)).ok());
      running.fetch_sub(1);
    });
  }
  const bool all = PollUntil([&] { return b_.handler->notes.size() == 4000; });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(all);
}

TEST_P(FabricTest, ReadsAndWritesReachTheOtherSidesMemory) {
  const auto region = Shared(b_, Access::kRemoteReadWrite);
  std::memset(region->address(), 'b', region->length());
  ASSERT_TRUE(Notify(b_, "shared").ok());
  ASSERT_TRUE(PollUntil([&] { return !a_.handler->notes.empty(); }));
  const RemoteSpan span = {region->key(), 4096, 1000};
  a_.channel->Map(span);
  std::vector<char> local(1000, 'a');
  ASSERT_TRUE(a_.channel->Read(span, local.data(), 1).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_TRUE(a_.handler->transfers[0].second.ok());
  EXPECT_EQ(local, std::vector<char>(1000, 'b'));
  std::fill(local.begin(), local.end(), 'w');
  ASSERT_TRUE(a_.channel->Write(local.data(), span, 2).ok());
  ASSERT_TRUE(Notify(a_, "written").ok());
  ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
  EXPECT_EQ(region->address()[4096], 'w');
  EXPECT_EQ(region->address()[4095], 'b');
}

TEST_P(FabricTest, NothingOutsideARegionCanBeReached) {
  const auto region = Shared(b_, Access::kRemoteReadWrite);
  char byte = 0;
  const RemoteSpan outside[] = {{region->key(), region->length(), 1},
                                {region->key(), ~uint64_t{0}, 2},
                                {region->key(), 0, region->length() + 1},
                                {region->key() + 77, 0, 1}};
  uint64_t cookie = 0;
  for (const RemoteSpan& span : outside) {
    EXPECT_EQ(a_.channel->Map(span).data, nullptr);
    ASSERT_TRUE(a_.channel->Read(span, &byte, ++cookie).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == cookie; }));
    EXPECT_FALSE(a_.handler->transfers.back().second.ok());
  }
}

TEST_P(FabricTest, MappedMemoryOutlivesTheRegionAndIsKnownAsThePeers) {
  auto region = Shared(b_, Access::kRemoteRead);
  std::strcpy(region->address(), "still here");
  const RemoteSpan span = {region->key(), 0, 11};
  MappedSpan mapped = a_.channel->Map(span);
  ASSERT_NE(mapped.data, nullptr);
  EXPECT_TRUE(IsMapped(mapped.data));
  RemoteSpan found;
  EXPECT_TRUE(a_.channel->Owns(mapped.data + 5, &found));
  EXPECT_EQ(found.offset, 5u);
  EXPECT_FALSE(a_.device->Locate(mapped.data, &found));
  region.reset();
  PollUntil([&] { return a_.channel->Map(span).data == nullptr; });
  EXPECT_STREQ(mapped.data, "still here");
}

TEST_P(FabricTest, ClosingTellsTheOtherSideOnce) {
  a_.channel->Close(Status(Code::kAborted, "enough"));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed && b_.handler->closed; }));
  EXPECT_NE(b_.handler->reason.message().find("enough"), std::string::npos);
  EXPECT_FALSE(Notify(a_, "too late").ok());
  EXPECT_FALSE(Notify(b_, "too late").ok());
}

TEST_P(FabricTest, ASleeperIsWokenByANotification) {
  while (b_.device->Poll() > 0 || !b_.device->Rest()) {
  }
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(Notify(a_, "wake").ok());
  });
  const Nanos before = Now();
  while (b_.handler->notes.empty() && Now() - before < 20 * kSecond) {
    b_.device->Sleep(Now() + 20 * kSecond);
    b_.device->Poll();
  }
  sender.join();
  EXPECT_EQ(b_.handler->notes.size(), 1u);
}

TEST_P(FabricTest, AStrangerWithAWrongAddressIsRefused) {
  Side stranger;
  ASSERT_TRUE(OpenDevice(GetParam(), &stranger.device).ok());
  ASSERT_TRUE(stranger.device->Open(stranger.handler, &stranger.channel).ok());
  EXPECT_FALSE(stranger.channel->Connect("nonsense", Role::kActive).ok());
  // The right socket, but a token that nobody gave out.
  std::string address = b_.channel->Address();
  address[0] = static_cast<char>(~address[0]);
  ASSERT_TRUE(stranger.channel->Connect(address, Role::kActive).ok());
  ASSERT_TRUE(PollUntil([&] {
    stranger.device->Poll();
    return stranger.handler->closed;
  }));
  EXPECT_FALSE(stranger.handler->connected);
  EXPECT_TRUE(Notify(a_, "undisturbed").ok());
  stranger.channel.reset();
}

INSTANTIATE_TEST_SUITE_P(Shm, FabricTest, ::testing::Values(FabricChoice::kShm));

}  // namespace
}  // namespace rdma_transport::fabric
