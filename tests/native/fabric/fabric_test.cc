// What every fabric must do. CMakeLists.txt runs these tests once for each fabric.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "device_pair.h"

namespace rdma_transport::fabric {
namespace {

using testing::Recorder;
using testing::Side;

// Polls a device as a task does: sleeps whenever there is nothing to do.
class PollingThread {
 public:
  explicit PollingThread(Device* device) : device_(device), thread_([this] { Loop(); }) {}
  ~PollingThread() {
    stop_.store(true);
    device_->Wake();
    thread_.join();
  }
  PollingThread(const PollingThread&) = delete;
  PollingThread& operator=(const PollingThread&) = delete;

  // Waits until the thread has nothing to do. Returns false if that takes too long.
  bool FallsAsleep() {
    const Nanos deadline = Now() + 20 * kSecond;
    while (!asleep_.load() && Now() < deadline) std::this_thread::yield();
    return asleep_.load();
  }

 private:
  void Loop() {
    while (!stop_.load()) {
      if (device_->Poll() > 0 || !device_->ArmNotification()) continue;
      asleep_.store(true);
      device_->Sleep(Now() + 20 * kSecond);
    }
  }

  Device* const device_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Overwrites a region when the channel has closed.
struct Marker final : Recorder {
  void OnClosed(const Status& status) override {
    std::memset(region->address(), 'e', region->length());
    Recorder::OnClosed(status);
  }
  Region* region = nullptr;
};

// Answers each notification with its words.
struct Echo final : Recorder {
  void OnNotify(const char* data, size_t length) override {
    Recorder::OnNotify(data, length);
    const iovec part = {const_cast<char*>(data), length};
    const Urgency urgency = notes.size() % 2 == 0 ? Urgency::kLazy : Urgency::kWake;
    EXPECT_TRUE(channel->Notify(&part, 1, urgency).ok());
  }

  Channel* channel = nullptr;
};

// Sends at once, and closes the other end, which need not know yet that it is connected.
struct Ender final : Recorder {
  void OnConnected() override {
    Recorder::OnConnected();
    const iovec part = {const_cast<char*>("hello"), 5};
    EXPECT_TRUE(channel->Notify(&part, 1, Urgency::kWake).ok());
    other->Close(Status(Code::kDeadlineExceeded, "it takes too long"));
  }

  Channel* channel = nullptr;
  Channel* other = nullptr;
};

// Takes its time with some notifications, and counts all.
struct SlowCounter final : Recorder {
  void OnNotify(const char*, size_t length) override {
    last = length;
    if (random() % 16 == 0) {
      const Nanos until = Now() + static_cast<Nanos>(random() % 20'000);
      while (Now() < until) {
      }
    }
    count.fetch_add(1);
  }

  std::mt19937 random{1};
  size_t last = 0;  // the length of the last one
  std::atomic<size_t> count{0};
};

struct Variant {
  const char* name;
  void (*change)(Settings* settings);
};

// With verbs, also queues so short and pieces so small that every limit is met.
std::vector<Variant> Variants() {
  std::vector<Variant> variants = {{"Defaults", [](Settings*) {}}};
  if (!testing::OnVerbs()) return variants;
  variants.push_back({"SmallQueues", [](Settings* settings) {
                        settings->verbs.queue_depth = 16;
                        settings->verbs.chunk = 4096;
                      }});
  return variants;
}

class FabricTest : public testing::DevicePairTest, public ::testing::WithParamInterface<Variant> {
 protected:
  Settings DefaultSettings() const override {
    Settings settings = testing::FabricSettings();
    GetParam().change(&settings);
    return settings;
  }
  void SetUp() override { ConnectedPair(); }
  void TearDown() override { Drop(); }

  // Memory that a local end may lie in.
  static std::unique_ptr<Region> Private(Side& side, size_t granules = 1) {
    return Allocate(side, granules, Access::kRemoteRead);
  }
  // Connects new channels, that of `a_` with this handler.
  void ConnectWith(const std::shared_ptr<Recorder>& handler) {
    a_.handler = handler;
    ASSERT_TRUE(a_.device->Open(a_.handler, &a_.channel).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && b_.handler->connected; }));
  }
};

TEST_P(FabricTest, NotificationsComeInOrderHoweverManyThereAre) {
  constexpr int kCount = 5000;
  for (int i = 0; i < kCount; ++i) {
    // Far more than a ring holds, of lengths that wrap at every place.
    ASSERT_TRUE(a_.Notify(std::to_string(i) + std::string(i % 700, '.')).ok());
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == kCount; }));
  for (int i = 0; i < kCount; ++i) {
    ASSERT_EQ(b_.handler->notes[i], std::to_string(i) + std::string(i % 700, '.'));
  }
}

TEST_P(FabricTest, WhatWasClosedBeforehandDoesNotConnect) {
  Side from, to;
  from.device = std::move(a_.device);
  to.device = std::move(b_.device);
  ASSERT_TRUE(from.device->Open(from.handler, &from.channel).ok());
  ASSERT_TRUE(to.device->Open(to.handler, &to.channel).ok());
  from.channel->Close(Status(Code::kAborted, "another link broke"));
  ASSERT_TRUE(to.channel->Connect(from.channel->Address(), Role::kPassive).ok());
  EXPECT_FALSE(from.channel->Connect(to.channel->Address(), Role::kActive).ok());
  a_.device = std::move(from.device);
  b_.device = std::move(to.device);
  EXPECT_TRUE(PollUntil([&] { return from.handler->closed; }));
  for (int i = 0; i < 100; ++i) PollUntil([] { return true; });
  EXPECT_FALSE(from.handler->connected);
  EXPECT_FALSE(to.handler->connected);
}

TEST_P(FabricTest, WhatEndsBeforeItIsConnectedHearsNothing) {
  for (Side* last : {&a_, &b_}) {
    const auto ender = std::make_shared<Ender>();
    last->handler = ender;
    Side* const first = last == &a_ ? &b_ : &a_;
    ASSERT_TRUE(last->device->Open(ender, &last->channel).ok());
    ASSERT_TRUE(OpenChannel(first).ok());
    ender->channel = last->channel.get();
    ender->other = first->channel.get();
    ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive).ok());
    EXPECT_TRUE(PollUntil([&] { return BothClosed(); }));
  }
}

// Channels may share a handler: of those that the combined device opens for a link, it drops all
// but one.
TEST_P(FabricTest, ADroppedChannelDoesNotCallItsHandler) {
  std::shared_ptr<Channel> unused;
  ASSERT_TRUE(a_.device->Open(a_.handler, &unused).ok());
  unused.reset();
  const Nanos until = Now() + 20 * kMillisecond;
  ASSERT_TRUE(PollUntil([&] { return Now() > until; }));
  EXPECT_FALSE(a_.handler->closed);
}

// As a link does whose peer does not answer: what ends it asks all of this.
TEST_P(FabricTest, AChannelThatNeverConnectsCanBeAskedAndCloses) {
  const auto memory = Private(a_);
  Side alone;
  ASSERT_TRUE(a_.device->Open(alone.handler, &alone.channel).ok());
  for (const bool over : {false, true}) {
    RemoteSpan span = {memory->key(), 0, 8};
    EXPECT_FALSE(alone.channel->OutlivedByTransfers());
    alone.channel->Keep(OwnerRef());
    EXPECT_EQ(alone.channel->Share(memory->key()).code(), Code::kUnavailable);
    EXPECT_EQ(alone.Notify("nobody").code(), Code::kUnavailable);
    EXPECT_FALSE(alone.channel->Write(memory->address(), span, 1).ok());
    EXPECT_EQ(alone.channel->Map(span).data, nullptr);
    EXPECT_EQ(alone.channel->Remote(span.key), nullptr);
    EXPECT_EQ(alone.channel->Delivered(), 0u);
    EXPECT_EQ(alone.channel->backlog().waiting_bytes, 0u);
    EXPECT_FALSE(alone.channel->Owns(memory->address(), &span));
    alone.channel->Locate(memory->address(), &span);
    alone.channel->Flush().IgnoreError();
    alone.channel->Hold();
    if (!over) alone.channel->Close(Status(Code::kDeadlineExceeded, "nobody answers"));
    ASSERT_TRUE(over || PollUntil([&] { return alone.handler->closed; }));
  }
  PollFor(kMillisecond);  // the handler sees to it that it is told once
}

TEST_P(FabricTest, SendersOnManyThreadsLoseNothing) {
  std::vector<std::thread> threads;
  std::atomic<int> running{4};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(a_.Notify(std::string(1, 'a' + t)).ok());
      running.fetch_sub(1);
    });
  }
  const bool all = PollUntil([&] { return b_.handler->notes.size() == 4000; });
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(all);
}

TEST_P(FabricTest, ReadsAndWritesReachTheOtherSidesMemory) {
  const auto region = Shared(b_);
  std::memset(region->address(), 'b', region->length());
  const RemoteSpan span = {region->key(), 4096, 1000};
  a_.channel->Map(span);
  const auto local = Private(a_);
  ASSERT_TRUE(a_.channel->Read(span, local->address(), 1).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == 1; }));
  EXPECT_TRUE(a_.handler->transfers[0].second.ok());
  EXPECT_EQ(std::string(local->address(), 1001), std::string(1000, 'b') + '\0');
  std::memset(local->address(), 'w', 1000);
  ASSERT_TRUE(a_.channel->Write(local->address(), span, 2).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
  EXPECT_EQ(region->address()[4096], 'w');
  EXPECT_EQ(region->address()[4095], 'b');
}

// Compares the peer's memory with the source whenever a write ends.
struct Comparer : Recorder {
  void OnTransfer(uint64_t cookie, const Status& status) override {
    Recorder::OnTransfer(cookie, status);
    EXPECT_EQ(std::memcmp(mine, theirs, length), 0) << "write " << cookie;
  }
  const char* mine = nullptr;
  const char* theirs = nullptr;
  size_t length = 0;
};

TEST_P(FabricTest, AWriteWhoseDeliveryIsReportedIsThereWhenItEnds) {
  const auto comparer = std::make_shared<Comparer>();
  a_.handler = comparer;
  b_.handler = std::make_shared<Recorder>();
  for (Side* side : {&a_, &b_}) {
    ASSERT_TRUE(side->device->Open(side->handler, &side->channel).ok());
  }
  const Terms terms = {"", WriteEnd::kDelivered};
  ASSERT_TRUE(b_.channel->Connect(a_.channel->Address(), Role::kPassive, terms).ok());
  ASSERT_TRUE(a_.channel->Connect(b_.channel->Address(), Role::kActive, terms).ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->connected && b_.handler->connected; }));
  const auto theirs = Shared(b_, 1, Access::kRemoteReadWrite);
  ASSERT_TRUE(b_.Notify("shared").ok());
  ASSERT_TRUE(PollUntil([&] { return !a_.handler->notes.empty(); }));
  const auto mine = Private(a_);
  comparer->mine = mine->address();
  comparer->theirs = theirs->address();
  comparer->length = std::min(mine->length(), theirs->length());
  const RemoteSpan span = {theirs->key(), 0, comparer->length};
  a_.channel->Map(span);
  for (uint64_t i = 1; i <= 30; ++i) {
    std::memset(mine->address(), static_cast<int>(i), comparer->length);
    ASSERT_TRUE(a_.channel->Write(mine->address(), span, i).ok());
    ASSERT_TRUE(a_.channel->Flush().ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == i; }));
  }
}

// After OnClosed(), the handler may free the memory of its transfers.
TEST_P(FabricTest, NoTransferUsesLocalMemoryAfterTheEnd) {
  constexpr size_t kGranules = 4;
  for (int round = 0; round < 6; ++round) {
    const auto marker = std::make_shared<Marker>();
    ASSERT_NO_FATAL_FAILURE(ConnectWith(marker));
    if (a_.channel->OutlivedByTransfers()) GTEST_SKIP() << "they may";
    const auto remote = Shared(b_, kGranules);
    const auto local = Allocate(a_, kGranules);
    marker->region = local.get();
    const RemoteSpan span = {remote->key(), 0, remote->length()};
    if (a_.channel->MapsPeer()) a_.channel->Map(span);
    std::thread reader([&, channel = a_.channel] {
      // A card has more to do at once.
      const int most = channel->Copies() ? std::numeric_limits<int>::max() : 4;
      for (int i = 0; i < most && channel->Read(span, local->address(), 1).ok();) ++i;
    });
    PollFor(round * kMillisecond, /*least=*/0);
    a_.channel->Close(Status(Code::kCancelled, "enough"));
    EXPECT_TRUE(PollUntil([&] { return a_.handler->closed; }));
    reader.join();
    const char* const data = local->address();
    EXPECT_EQ(std::count(data, data + local->length(), 'e'), static_cast<long>(local->length()));
    Drop();
  }
}

// As above, for copies that take no lock, of several threads.
TEST_P(FabricTest, NoCopyUsesLocalMemoryAfterTheEnd) {
  if (!a_.channel->MapsPeer()) GTEST_SKIP() << "copies are for memory that is mapped";
  constexpr size_t kGranules = 4;
  for (int round = 0; round < 6; ++round) {
    const auto marker = std::make_shared<Marker>();
    ASSERT_NO_FATAL_FAILURE(ConnectWith(marker));
    auto remote = Shared(b_, kGranules);
    const auto local = Allocate(a_, kGranules);
    marker->region = local.get();
    const auto region = a_.channel->Remote(remote->key());
    ASSERT_NE(region, nullptr);
    std::vector<std::thread> readers;
    for (int i = 0; i < 2; ++i) {
      readers.emplace_back([&, i] {
        const uint64_t half = local->length() / 2;
        while (region->Read(i * half, local->address() + i * half, half).ok()) {
        }
      });
    }
    PollFor(round * kMillisecond, /*least=*/0);
    // The end of the region, and then that of the channel while its last copy may be under way.
    if (round % 2 == 1) remote.reset();
    if (round % 4 == 1) PollFor(kMillisecond, /*least=*/0);
    a_.channel->Close(Status(Code::kCancelled, "enough"));
    EXPECT_TRUE(PollUntil([&] { return a_.handler->closed; }));
    for (std::thread& reader : readers) reader.join();
    const char* const data = local->address();
    EXPECT_EQ(std::count(data, data + local->length(), 'e'), static_cast<long>(local->length()));
    EXPECT_FALSE(region->Read(0, local->address(), 1).ok());
    EXPECT_EQ(a_.channel->Remote(1), nullptr);
    Drop();
  }
}

TEST_P(FabricTest, CopiesEndWithTheRegionAndWithTheChannel) {
  const auto mine = Private(a_);
  auto region = Shared(b_);
  const auto fixed = Shared(b_, 1, Access::kRemoteRead);
  if (!a_.channel->MapsPeer()) {
    EXPECT_EQ(a_.channel->Remote(region->key()), nullptr);
    return;
  }
  EXPECT_EQ(a_.channel->Remote(region->key() + 100), nullptr);
  const auto remote = a_.channel->Remote(region->key());
  const auto unwritable = a_.channel->Remote(fixed->key());
  ASSERT_NE(remote, nullptr);
  ASSERT_NE(unwritable, nullptr);
  std::memcpy(mine->address(), "written", 8);
  ASSERT_TRUE(remote->Write(mine->address(), region->length() - 8, 8).ok());
  EXPECT_STREQ(region->address() + region->length() - 8, "written");
  std::memcpy(region->address(), "read me", 8);
  ASSERT_TRUE(remote->Read(0, mine->address() + 64, 8).ok());
  EXPECT_STREQ(mine->address() + 64, "read me");

  const uint64_t length = region->length();
  EXPECT_EQ(remote->Read(length - 7, mine->address(), 8).code(), Code::kInvalidArgument);
  EXPECT_EQ(remote->Read(length + 1, mine->address(), 0).code(), Code::kInvalidArgument);
  EXPECT_EQ(remote->Write(mine->address(), ~uint64_t{0}, 2).code(), Code::kInvalidArgument);
  EXPECT_EQ(unwritable->Write(mine->address(), 0, 8).code(), Code::kPermissionDenied);
  EXPECT_TRUE(unwritable->Read(0, mine->address(), 8).ok());

  region.reset();
  EXPECT_TRUE(
      PollUntil([&] { return remote->Read(0, mine->address(), 8).code() == Code::kNotFound; }));
  EXPECT_EQ(remote->Write(mine->address(), 0, 8).code(), Code::kNotFound);
  a_.channel->Close(Status(Code::kCancelled, "enough"));
  EXPECT_EQ(unwritable->Read(0, mine->address(), 8).code(), Code::kUnavailable);
  // A copy's memory does not keep the peer waiting.
  EXPECT_TRUE(PollUntil(
      [&] { return b_.handler->released || b_.handler->reason.code() == Code::kUnavailable; }));
  Drop();
  EXPECT_EQ(unwritable->Read(0, mine->address(), 8).code(), Code::kUnavailable);
}

TEST_P(FabricTest, NothingOutsideARegionCanBeReached) {
  const auto region = Shared(b_);
  const auto local = Private(a_);
  const RemoteSpan outside[] = {{region->key(), region->length(), 1},
                                {region->key(), ~uint64_t{0}, 2},
                                {region->key(), 0, region->length() + 1},
                                {region->key() + 77, 0, 1}};
  uint64_t cookie = 0;
  for (const RemoteSpan& span : outside) {
    EXPECT_EQ(a_.channel->Map(span).data, nullptr);
    ASSERT_TRUE(a_.channel->Read(span, local->address(), ++cookie).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == cookie; }));
    EXPECT_FALSE(a_.handler->transfers.back().second.ok());
    EXPECT_FALSE(a_.channel->Write(local->address(), span, 99).ok());
  }
  EXPECT_TRUE(a_.Notify("undisturbed").ok());
  ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
}

TEST_P(FabricTest, LargeTransfersArriveWholeAndBeforeWhatTellsOfThem) {
  const size_t granule = a_.device->RegionGranule();
  const auto region = Shared(b_, 4);
  const auto local = Private(a_, 4);
  a_.channel->Map({region->key(), 0, 1});
  const size_t length = 3 * granule + 12345;
  for (int round = 1; round <= 5; ++round) {
    for (size_t i = 0; i < length; ++i) local->address()[i] = static_cast<char>(i * round / 251);
    b_.handler->notes.clear();
    const RemoteSpan span = {region->key(), static_cast<uint64_t>(round), length};
    ASSERT_TRUE(a_.channel->Write(local->address(), span, round).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
    ASSERT_EQ(std::memcmp(region->address() + round, local->address(), length), 0);
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() >= size_t(2 * round - 1); }));
    std::memset(local->address(), 0, length);
    ASSERT_TRUE(a_.channel->Read(span, local->address(), 100 + round).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->transfers.size() == size_t(2 * round); }));
    ASSERT_TRUE(a_.handler->transfers.back().second.ok());
    ASSERT_EQ(std::memcmp(region->address() + round, local->address(), length), 0);
  }
}

TEST_P(FabricTest, WritesToMemoryThatMayOnlyBeReadAreRefused) {
  const auto region = Shared(b_, 1, Access::kRemoteRead);
  const auto local = Private(a_);
  const RemoteSpan span = {region->key(), 0, 8};
  a_.channel->Map(span);
  const Status status = a_.channel->Write(local->address(), span, 1);
  EXPECT_EQ(status.code(), Code::kPermissionDenied);
  EXPECT_TRUE(a_.Notify("undisturbed").ok());
  EXPECT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
}

TEST_P(FabricTest, NotificationsAreNumberedAndConfirmed) {
  uint64_t number = 0;
  const iovec part = {const_cast<char*>("x"), 1};
  for (uint64_t i = 1; i <= 100; ++i) {
    ASSERT_TRUE(a_.channel->Notify(&part, 1, Urgency::kWake, &number).ok());
    ASSERT_EQ(number, i);
  }
  EXPECT_TRUE(PollUntil([&] { return a_.handler->delivered == 100; }));
}

TEST_P(FabricTest, ALazyNotificationComesByItself) {
  const iovec part = {const_cast<char*>("lazy"), 4};
  ASSERT_TRUE(a_.channel->Notify(&part, 1, Urgency::kLazy).ok());
  EXPECT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 1; }));
  // Also when the sender's polling thread sleeps.
  PollingThread polling(a_.device.get());
  ASSERT_TRUE(polling.FallsAsleep());
  ASSERT_TRUE(a_.channel->Notify(&part, 1, Urgency::kLazy).ok());
  const Nanos deadline = Now() + 20 * kSecond;
  while (b_.handler->notes.size() < 2 && Now() < deadline) b_.device->Poll();
  EXPECT_EQ(b_.handler->notes.size(), 2u);
}

TEST_P(FabricTest, AShortNotificationIsTakenHoweverMuchIsQueued) {
  const auto counter = std::make_shared<SlowCounter>();
  ASSERT_NO_FATAL_FAILURE(ConnectWith(counter));
  const std::string bytes(60'000, '.');
  size_t sent = 0;
  Status queued = b_.Notify(bytes);
  for (; queued.ok(); queued = b_.Notify(bytes)) ++sent;
  EXPECT_EQ(queued.code(), Code::kResourceExhausted) << queued.message();
  EXPECT_GE(sent * bytes.size(), kMaxQueued / 2);
  EXPECT_TRUE(b_.Notify(std::string(kAlwaysQueued, '!')).ok());
  ASSERT_TRUE(PollUntil([&] { return counter->count.load() == sent + 1; }, 100 * kSecond));
  EXPECT_EQ(counter->last, kAlwaysQueued);
}

TEST_P(FabricTest, BothSidesMayFloodEachOther) {
  constexpr int kCount = 3000;
  const std::string text(3000, '.');
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(a_.Notify(text).ok());
    ASSERT_TRUE(b_.Notify(text).ok());
  }
  EXPECT_TRUE(PollUntil(
      [&] { return a_.handler->notes.size() == kCount && b_.handler->notes.size() == kCount; }));
}

TEST_P(FabricTest, MappedMemoryOutlivesTheRegionAndIsKnownAsThePeers) {
  if (!a_.channel->MapsPeer()) GTEST_SKIP() << "this fabric maps nothing";
  auto region = Shared(b_, 1, Access::kRemoteRead);
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
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_NE(b_.handler->reason.message().find("enough"), std::string::npos);
  EXPECT_FALSE(a_.Notify("too late").ok());
  EXPECT_FALSE(b_.Notify("too late").ok());
}

TEST_P(FabricTest, ASleeperIsWokenByANotification) {
  PollingThread polling(a_.device.get());
  ASSERT_TRUE(polling.FallsAsleep());
  while (b_.device->Poll() > 0 || !b_.device->ArmNotification()) {
  }
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(a_.Notify("wake").ok());
  });
  const Nanos before = Now();
  while (b_.handler->notes.empty() && Now() - before < 20 * kSecond) {
    if (b_.device->Poll() == 0 && b_.device->ArmNotification()) {
      b_.device->Sleep(Now() + 20 * kSecond);
    }
  }
  sender.join();
  EXPECT_EQ(b_.handler->notes.size(), 1u);
}

// A device need not look at channels that are idle, and must not miss the end of their rest: not
// while it is busy with others, nor while it sleeps, nor in between.
TEST_P(FabricTest, WhoWasIdleIsHeardAtOnce) {
  constexpr int kRounds = 150;
  std::vector<std::pair<Side, Side>> many(12);
  for (auto& [a, b] : many) {
    const auto echo = std::make_shared<Echo>();
    a.handler = std::make_shared<Recorder>();
    b.handler = echo;
    ASSERT_TRUE(a_.device->Open(a.handler, &a.channel).ok());
    ASSERT_TRUE(b_.device->Open(b.handler, &b.channel).ok());
    echo->channel = b.channel.get();
    ASSERT_TRUE(b.channel->Connect(a.channel->Address(), Role::kPassive).ok());
    ASSERT_TRUE(a.channel->Connect(b.channel->Address(), Role::kActive).ok());
    ASSERT_TRUE(
        PollUntil([&, a = a.handler, b = b.handler] { return a->connected && b->connected; }));
  }
  {
    PollingThread echoes(b_.device.get());
    std::mt19937 random(1);
    for (int i = 0; i < kRounds; ++i) {
      Side& side = many[random() % many.size()].first;
      const size_t heard = side.handler->notes.size();
      const std::string words = "round " + std::to_string(i);
      ASSERT_TRUE(side.Notify(words, random() % 2 == 0 ? Urgency::kLazy : Urgency::kWake).ok());
      const Nanos deadline = Now() + 10 * kSecond;
      while (side.handler->notes.size() == heard && Now() < deadline) {
        if (a_.device->Poll() > 0 || !a_.device->ArmNotification()) continue;
        a_.device->Sleep(deadline);
      }
      ASSERT_EQ(side.handler->notes.size(), heard + 1) << "after " << words;
      EXPECT_EQ(side.handler->notes.back(), words);
      const Nanos rest = Now() + static_cast<Nanos>(random() % 4) * kMillisecond;
      while (Now() < rest) a_.device->Poll();
    }
  }
  for (auto& [a, b] : many) b.handler.reset();
  for (auto& [a, b] : many) a.handler.reset();
  many.clear();
}

// A ring has room for a few of these notifications, and both threads sleep whenever they can. The
// receiver thus makes room at any moment of the sender's way to sleep.
TEST_P(FabricTest, RoomIsSeenByASenderThatFallsAsleep) {
  const int rounds = testing::OnShm() ? 1500 : 200;  // others take longer
  const auto counter = std::make_shared<SlowCounter>();
  ASSERT_NO_FATAL_FAILURE(ConnectWith(counter));
  const std::string bytes(6'000, '.');
  std::mt19937 random(2);
  {
    PollingThread sender(b_.device.get());
    PollingThread receiver(a_.device.get());
    size_t sent = 0;
    for (int round = 0; round < rounds; ++round) {
      for (size_t burst = 50 + random() % 250; burst > 0; --burst, ++sent) {
        ASSERT_TRUE(b_.Notify(bytes.substr(random() % bytes.size())).ok());
      }
      const Nanos deadline = Now() + 10 * kSecond;
      while (counter->count.load() < sent && Now() < deadline) std::this_thread::yield();
      ASSERT_EQ(counter->count.load(), sent) << "in round " << round;
    }
  }
}

TEST_P(FabricTest, AStrangerWithAWrongAddressIsRefused) {
  Side stranger;
  ASSERT_TRUE(OpenDevice(DefaultSettings(), &stranger.device).ok());
  ASSERT_TRUE(OpenChannel(&stranger).ok());
  EXPECT_FALSE(stranger.channel->Connect("nonsense", Role::kActive).ok());
  const auto handler = std::make_shared<Recorder>();
  std::shared_ptr<Channel> passive;
  ASSERT_TRUE(b_.device->Open(handler, &passive).ok());
  ASSERT_TRUE(passive->Connect(stranger.channel->Address(), Role::kPassive).ok());
  // The right peer, but a token that nobody gave out. It comes first in an address of shared memory
  // (behind the fabric's name and two lengths), and last in those of other fabrics.
  std::string address = passive->Address();
  char& in_token = testing::OnShm() ? address[7] : address.back();
  in_token = static_cast<char>(~in_token);
  ASSERT_TRUE(stranger.channel->Connect(address, Role::kActive).ok());
  ASSERT_TRUE(PollUntil([&] {
    stranger.device->Poll();
    return stranger.handler->closed;
  }));
  EXPECT_FALSE(stranger.handler->connected);
  EXPECT_FALSE(handler->connected);
  EXPECT_TRUE(a_.Notify("undisturbed").ok());
  ASSERT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
  stranger.channel.reset();
  passive.reset();
  b_.device->Poll();
}

INSTANTIATE_TEST_SUITE_P(, FabricTest, ::testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace rdma_transport::fabric
