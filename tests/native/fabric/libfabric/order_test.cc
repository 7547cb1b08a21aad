// Notifications never overtake the data that they speak of, in whatever order the provider delivers
// and completes, and whether or not it tells the target of writes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::Faulty;
using testing::FaultyCounters;
using testing::kCxi;
using testing::kEfa;
using testing::kUnorderedProvider;
using testing::OnFaulty;
using testing::Recorder;
using testing::SetFaulty;

struct Kind {
  const char* name;
  const char* settings;
};

class LibfabricOrderTest : public testing::LibfabricPairTest,
                           public ::testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    LibfabricPairTest::SetUp();
    SetFaulty(GetParam().settings);
  }
  Settings DefaultSettings() const override {
    return GetParam().settings == testing::kTwoCards ? testing::OnTwoCards() : OnFaulty();
  }
};

// Each notification names a write, whose bytes must be there when it comes.
struct Checker : Recorder {
  void OnNotify(const char* data, size_t length) override {
    ASSERT_EQ(length, sizeof(uint64_t));
    uint64_t number = 0;
    std::memcpy(&number, data, sizeof(number));
    ASSERT_EQ(number, ++count);
    if (memory == nullptr) return;
    const size_t at = number % slots * bytes;
    uint64_t first = 0, last = 0;
    std::memcpy(&first, memory + at, sizeof(first));
    std::memcpy(&last, memory + at + bytes - sizeof(last), sizeof(last));
    EXPECT_EQ(first, number);
    EXPECT_EQ(last, number);
  }

  const char* memory = nullptr;
  size_t slots = 0;
  size_t bytes = 0;
  uint64_t count = 0;
};

TEST_P(LibfabricOrderTest, EachNotificationFindsItsData) {
  constexpr uint64_t kCount = 400;
  constexpr size_t kSlots = 64;
  constexpr size_t kBytes = 10000;  // three pieces
  OpenDevices();
  auto checker = std::make_shared<Checker>();
  b_.handler = checker;
  ASSERT_TRUE(b_.device->Open(checker, &b_.channel).ok());
  ASSERT_TRUE(OpenChannel(&a_).ok());
  ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
  ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && checker->connected; }));
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  checker->memory = remote->address();
  checker->slots = kSlots;
  checker->bytes = kBytes;
  std::mt19937 random(1);
  for (uint64_t i = 1; i <= kCount && !HasFailure(); ++i) {
    // A slot is used again when the peer has seen its last content.
    ASSERT_TRUE(PollUntil([&] { return checker->count + kSlots / 2 >= i; }));
    char* source = local->address() + i % kSlots * kBytes;
    std::memcpy(source, &i, sizeof(i));
    std::memcpy(source + kBytes - sizeof(i), &i, sizeof(i));
    ASSERT_TRUE(a_.channel->Write(source, {remote->key(), i % kSlots * kBytes, kBytes}, i).ok());
    const iovec part = {&i, sizeof(i)};
    const Urgency urgency = random() % 3 == 0 ? Urgency::kLazy : Urgency::kWake;
    ASSERT_TRUE(a_.channel->Notify(&part, 1, urgency).ok());
  }
  EXPECT_TRUE(PollUntil([&] { return checker->count == kCount; }));
  EXPECT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == kCount; }));
  for (const auto& [cookie, status] : a_.handler->transfers) EXPECT_TRUE(status.ok()) << cookie;
}

TEST_P(LibfabricOrderTest, ANotificationWaitsForWritesThatAreSlow) {
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  Faulty().hold_writes(1);
  std::strcpy(local->address(), "new");
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 7, 10000}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(a_.Notify("and another").ok());
  ASSERT_TRUE(b_.Notify("the other way").ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->notes.size() == 1; }));
  PollFor(50 * kMillisecond);
  EXPECT_EQ(b_.handler->notes.size(), 0u);
  EXPECT_STREQ(remote->address() + 7, "");
  Faulty().hold_writes(0);
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 2; }));
  EXPECT_STREQ(remote->address() + 7, "new");
  EXPECT_EQ(b_.handler->notes[0], "written");
  EXPECT_GT(FaultyCounters().delayed_writes, 0u);
}

TEST_P(LibfabricOrderTest, NotificationsOfEveryLengthComeInOrder) {
  constexpr int kCount = 1500;
  ConnectedPair();
  std::mt19937 random(2);
  std::vector<std::string> sent;
  for (int i = 0; i < kCount; ++i) {
    const size_t length = random() % 10 == 0 ? random() % 100'000 : random() % 300;
    sent.push_back(std::to_string(i) + std::string(length, static_cast<char>('a' + i % 26)));
    const Urgency urgency = random() % 3 == 0 ? Urgency::kLazy : Urgency::kWake;
    ASSERT_TRUE(a_.Notify(sent.back(), urgency).ok());
    if (random() % 8 == 0) Poll();
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == kCount; }));
  EXPECT_TRUE(b_.handler->notes == sent);
  EXPECT_TRUE(PollUntil([&] { return a_.handler->delivered == kCount; }));
}

// The remote data of a write has 16 bits for its place among the channel's writes.
TEST_P(LibfabricOrderTest, MoreWritesAtOnceThanRemoteDataCanTellApart) {
  const bool tcp = std::string(GetParam().name) == "Tcp";
  if (!tcp && GetParam().settings != kUnorderedProvider) GTEST_SKIP() << "it is as with these";
  // One of them tells enough about the end of 16 bits.
  const uint64_t count = tcp ? 34'000 : 17'000;
  if (!tcp) SetFaulty("delay_us=50");
  Settings settings = DefaultSettings();
  ConnectedPair(settings);
  const auto remote = Shared(b_, 2);
  const auto local = Allocate(a_, 2);
  for (size_t i = 0; i < count * 64; ++i) local->address()[i] = static_cast<char>(i / 63);
  const auto write = [count](const auto& from, const Region& source, const Region& destination) {
    for (size_t at = 0; at < count * 64; at += 64) {
      const RemoteSpan span = {destination.key(), at, 64};
      ASSERT_TRUE(from.channel->Write(source.address() + at, span, kNobodyWaits).ok());
    }
  };
  write(a_, *local, *remote);
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }, 60 * kSecond));
  EXPECT_EQ(std::memcmp(remote->address(), local->address(), count * 64), 0);
  // In both directions, and nobody confirms for the sake of messages.
  const auto back = Shared(a_, 2);
  write(b_, *remote, *back);
  write(a_, *local, *remote);
  ASSERT_TRUE(b_.Notify("back").ok());
  ASSERT_TRUE(a_.Notify("again").ok());
  ASSERT_TRUE(PollUntil(
      [&] { return b_.handler->notes.back() == "again" && a_.handler->notes.back() == "back"; },
      60 * kSecond));
}

INSTANTIATE_TEST_SUITE_P(, LibfabricOrderTest,
                         ::testing::Values(Kind{"Tcp", ""}, Kind{"Unordered", kUnorderedProvider},
                                           Kind{"Cxi", kCxi}, Kind{"Efa", kEfa},
                                           Kind{"TwoCards", testing::kTwoCards}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
