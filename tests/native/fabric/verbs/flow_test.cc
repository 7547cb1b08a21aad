// Flow control and order of the verbs fabric under load.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>

#include "base/arrivals.h"
#include "fabric/verbs/wire.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::ExpectHas;
using testing::Fake;
using testing::FakeStats;
using testing::OnFake;
using testing::SetFake;
using testing::Side;

// --- Order ---

constexpr uint64_t kPlaces = 4;

// What one side of a flood says. A write is told of by the notification that follows it, and its
// place is used again when the peer has said that it looked.
struct Message {
  uint64_t number = 0;
  uint64_t follows = 0;  // no notification up to this one comes later
  uint64_t length = 0;   // of the write; 0: none
  uint64_t place = 0;
  std::array<uint64_t, kPlaces> looked_at = {};  // the peer's messages of the last writes there
};

constexpr uint64_t kPlace = 1 << 20;

char At(uint64_t seed, uint64_t i) { return static_cast<char>(seed * 37 + i * 11 + i / 4096); }

// One side of a flood, and what the other one must find.
class Flooder final : public ChannelHandler {
 public:
  Flooder(uint64_t count, uint64_t largest, int seed)
      : count_(count), largest_(largest), random_(seed) {}

  void OnConnected() override { connected_ = true; }
  void OnDelivered(uint64_t number) override { delivered_ = number; }
  void OnTransfer(uint64_t cookie, const Status& status) override {
    EXPECT_TRUE(status.ok()) << status.message();
    for (Place& place : places_) place.under_way &= place.number != cookie;
  }
  void OnClosed(const Status& status) override { ADD_FAILURE() << status.message(); }
  void OnNotify(const char* data, size_t length) override {
    if (length == sizeof(key_)) return std::memcpy(&key_, data, sizeof(key_)), void();
    Message message;
    ASSERT_GE(length, sizeof(message));
    std::memcpy(&message, data, sizeof(message));
    ASSERT_TRUE(received_.Add(message.number)) << "twice";
    ASSERT_GE(received_.AllTo(), message.follows) << "lost, or out of order";
    for (uint64_t i = 0; i < kPlaces; ++i) {
      places_[i].seen = std::max(places_[i].seen, message.looked_at[i]);
    }
    const char* place = region_->address() + message.place * kPlace;
    for (uint64_t i = 0; i < message.length; i += i + 97 < message.length ? 97 : 1) {
      ASSERT_EQ(place[i], At(message.number, i)) << "told of before it was there";
    }
    if (message.length > 0) looked_at_[message.place] = message.number;
  }

  void Begin(Device* device, Channel* channel) {
    channel_ = channel;
    ASSERT_TRUE(
        device->Allocate(2 * kPlaces * kPlace, Access::kRemoteReadWrite, nullptr, &region_).ok());
    ASSERT_TRUE(channel->Share(region_->key()).ok());
    const uint64_t key = region_->key();
    const iovec part = {const_cast<uint64_t*>(&key), sizeof(key)};
    ASSERT_TRUE(channel->Notify(&part, 1, Urgency::kWake).ok());
  }
  bool connected() const { return connected_; }
  bool ready() const { return key_ != 0; }
  bool done() const {
    return sent_ == count_ && received_.AllTo() == count_ && delivered_ == count_ + 1;
  }

  // One notification, perhaps with a write before it. Nothing if all is said.
  void Say() {
    if (sent_ == count_) return;
    Message message;
    message.number = ++sent_;
    message.looked_at = looked_at_;
    After after = After::Nothing();
    const auto free = std::find_if(places_.begin(), places_.end(), [](const Place& place) {
      return place.seen == place.number && !place.under_way;
    });
    if (free != places_.end() && random_() % 3 == 0) {
      message.length = 1 + random_() % (random_() % 8 == 0 ? largest_ : 9000);
      message.place = static_cast<uint64_t>(free - places_.begin());
      *free = {sent_, free->seen, true};
      char* source = region_->address() + (kPlaces + message.place) * kPlace;
      for (uint64_t i = 0; i < message.length; ++i) source[i] = At(sent_, i);
      const RemoteSpan span = {key_, message.place * kPlace, message.length};
      ASSERT_TRUE(channel_->Write(source, span, sent_).ok());
      after = After::Write(sent_);
    }
    if (random_() % 4 == 0) after = After::Everything();
    message.follows = after.IsEverything() ? sent_ - 1 : follows_;
    if (after.IsEverything()) follows_ = sent_;
    const size_t more = random_() % (random_() % 16 == 0 ? 60000 : 300);
    const iovec parts[] = {{&message, sizeof(message)}, {filler_.data(), more}};
    // The last word is signaled, so that the end of all is told.
    const bool lazy = sent_ < count_ && random_() % 2 == 0;
    const Urgency urgency = lazy ? Urgency::kLazy : Urgency::kWake;
    ASSERT_TRUE(channel_->Notify(parts, 2, urgency, nullptr, after).ok());
  }

 private:
  const uint64_t count_;
  const uint64_t largest_;
  std::mt19937_64 random_;
  Channel* channel_ = nullptr;
  std::unique_ptr<Region> region_;  // the places of the peer's writes, then the sources of ours
  std::vector<char> filler_ = std::vector<char>(60000, '.');
  bool connected_ = false;
  uint64_t key_ = 0;  // of the peer's region
  uint64_t sent_ = 0;
  uint64_t follows_ = 0;  // the last one that follows everything
  uint64_t delivered_ = 0;
  Arrivals received_;
  struct Place {
    uint64_t number = 0;  // of the message of the last write
    uint64_t seen = 0;    // of the last that the peer looked at
    bool under_way = false;
  };
  std::array<Place, kPlaces> places_;
  std::array<uint64_t, kPlaces> looked_at_ = {};  // in the peer's places
};

class VerbsFlowTest : public testing::VerbsPairTest {
 protected:
  // Floods in both directions; each side now and then does not poll for a while.
  void Flood(const Settings& settings, uint64_t count, uint64_t largest) {
    ASSERT_NO_FATAL_FAILURE(OpenDevices(settings));
    auto a = std::make_shared<Flooder>(count, largest, 1);
    auto b = std::make_shared<Flooder>(count, largest, 2);
    std::shared_ptr<Channel> to_b, to_a;
    ASSERT_TRUE(a_.device->Open(a, &to_b).ok());
    ASSERT_TRUE(b_.device->Open(b, &to_a).ok());
    ASSERT_TRUE(to_a->Connect(to_b->Address(), Role::kPassive).ok());
    ASSERT_TRUE(to_b->Connect(to_a->Address(), Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return a->connected() && b->connected(); }));
    a->Begin(a_.device.get(), to_b.get());
    b->Begin(b_.device.get(), to_a.get());
    ASSERT_TRUE(PollUntil([&] { return a->ready() && b->ready(); }));
    std::mt19937 random(3);
    const Nanos deadline = Now() + 60 * kSecond;
    while (!HasFatalFailure() && !HasNonfatalFailure() && !(a->done() && b->done())) {
      ASSERT_LT(Now(), deadline);
      if (disturb_) disturb_(&random);
      const unsigned turn = random() % 6;
      const unsigned times = random() % 60;
      for (unsigned i = 0; i < times; ++i) {
        if (turn != 0) a->Say();
        if (turn != 1) b->Say();
        if (turn != 2) a_.device->Poll();
        if (turn != 3) b_.device->Poll();
      }
    }
    const FakeIbverbsStats stats = FakeStats();
    EXPECT_EQ(stats.rnr_naks_sent, 0u);
    EXPECT_EQ(stats.cq_overruns, 0u);
    EXPECT_LE(stats.highest_cq_fill, kCapacity);
  }

  static constexpr uint64_t kCapacity = 240;
  std::function<void(std::mt19937*)> disturb_;
};

TEST_F(VerbsFlowTest, FloodsBothWaysKeepTheOrderOfWritesAndNotifications) {
  SetFake("delay_us", "20");
  SetFake("max_cqe", std::to_string(kCapacity));
  Flood(OnFake(), 3000, 40000);
}

// A card may confirm a write before its bytes are visible. They are before a receive of the same
// queue pair is, and two cards know nothing of each other.
TEST_F(VerbsFlowTest, AlsoWhereCardsPlaceBytesLate) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("active_width", "1");  // 10 Gb/s, so pieces are small
  SetFake("active_speed", "8");
  SetFake("delay_us", "20");
  SetFake("place_late_us", "1000000000");
  Settings settings = OnFake();
  settings.verbs.chunk = 64 << 10;
  const auto both = [] {
    return std::min(Fake().port_bytes("fake_0", 1), Fake().port_bytes("fake_1", 1)) > kPlace;
  };
  for (int floods = 0; floods < 10 && !both() && !HasFailure(); ++floods) {
    Flood(settings, 3000, kPlace - 1);
    DropDevices();
  }
  EXPECT_TRUE(both());
}

TEST_F(VerbsFlowTest, AlsoWhereAPortGoesDownAndReturnsAgainAndAgain) {
  SetFake("devices", "fake_0,fake_1");
  SetFake("delay_us", "20");
  int changes = 0;
  Nanos next = Now() + 200 * kMillisecond;
  uint64_t carried = 0;
  disturb_ = [&](std::mt19937* random) {
    if (Now() < next) return;
    const bool goes_down = changes % 2 == 0;
    // On a busy machine it may take long until the port is used again.
    if (goes_down && Fake().port_bytes("fake_1", 1) == carried) return;
    next = Now() + static_cast<Nanos>((*random)() % 150) * kMillisecond;
    SetFake("fake_1.port_state", goes_down ? "down" : "active");
    carried = Fake().port_bytes("fake_1", 1);
    ++changes;
  };
  Settings settings = OnFake();
  settings.verbs.chunk = 64 << 10;
  for (int floods = 0; floods < 10 && changes <= 3 && !HasFailure(); ++floods) {
    Flood(settings, 40000, kPlace - 1);
    DropDevices();
  }
  EXPECT_GT(changes, 3);
}

TEST_F(VerbsFlowTest, ADeviceOfShortQueuesGetsFewerBatches) {
  SetFake("max_qp_wr", "60");
  Settings settings = OnFake();
  settings.verbs.queue_depth = 256;
  Flood(settings, 1000, 9000);
}

TEST_F(VerbsFlowTest, WhatIsTooLongIsRefusedAtOnceBehindALargeWrite) {
  ConnectedPair();
  const auto remote = Shared(b_, 8);
  const auto local = Allocate(a_, 8);
  const RemoteSpan span = {remote->key(), 0, local->length()};
  ASSERT_TRUE(a_.channel->Write(local->address(), span, 1).ok());
  EXPECT_EQ(a_.Notify(std::string(host::kLongestNotification + 1, '.')).code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(a_.Notify(std::string(host::kLongestNotification - kMaxStripeHeader, '.')).ok());
  ExpectToTalk();
  EXPECT_FALSE(a_.handler->closed);
}

// Longer than a record of the ring, they travel in parts, and nothing comes between these.
TEST_F(VerbsFlowTest, LongNotificationsComeBetweenShortOnes) {
  ConnectedPair();
  const std::vector<std::string> texts = {
      "short",   std::string(4 << 20, 'l'),    "shorter", std::string(kLargeRing / 8 * 3, 'm'),
      "between", std::string(kLargeRing, 'r'), "last"};
  for (const std::string& text : texts) {
    ASSERT_TRUE(a_.Notify(text).ok());
    ASSERT_TRUE(b_.Notify(text).ok());
  }
  ASSERT_TRUE(PollUntil([&] {
    return a_.handler->notes.size() == texts.size() && b_.handler->notes.size() == texts.size();
  }));
  EXPECT_TRUE(a_.handler->notes == texts && b_.handler->notes == texts);
  EXPECT_TRUE(PollUntil([&] { return a_.handler->delivered == texts.size(); }));
}

// All that was sent has arrived, and there is no room for more: only a question can fail.
TEST_F(VerbsFlowTest, WhoWaitsForRoomLearnsThatThePeerIsGone) {
  for (const bool asleep : {false, true}) {
    ConnectedPair();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(a_.Notify("no more than 16 batches leave").ok());
    const Nanos deadline = Now() + 10 * kSecond;
    while (a_.handler->delivered < 14 && Now() < deadline) a_.device->Poll();  // and two greetings
    Fake().break_path(true);  // after which b is silent
    const Nanos begin = Now();
    while (!a_.handler->closed && Now() < deadline) {
      if (a_.device->Poll() == 0 && asleep && a_.device->ArmNotification())
        a_.device->Sleep(deadline);
    }
    EXPECT_LT(Now() - begin, 3 * kSecond);
    ExpectHas(a_.handler->reason, "IBV_WC_RETRY_EXC_ERR");
    Fake().break_path(false);
    Drop();
  }
}

// Nothing is under way on either side, nor ever will be.
TEST_F(VerbsFlowTest, WhoHasNothingToSayLearnsThatThePeerIsGone) {
  Settings settings = OnFake();
  settings.peer_timeout = 300 * kMillisecond;
  ConnectedPair(settings);
  ASSERT_TRUE(a_.Notify("the last word").ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->delivered == 1 && !b_.handler->notes.empty(); }));
  Fake().break_path(true);
  for (Side* side : {&b_, &a_}) {
    const Nanos deadline = Now() + 20 * kSecond;
    while (!side->handler->closed && Now() < deadline) {
      if (side->device->Poll() == 0 && side->device->ArmNotification())
        side->device->Sleep(deadline);
    }
    ExpectHas(side->handler->reason, "IBV_WC_RETRY_EXC_ERR");
  }
  Fake().break_path(false);
}

TEST_F(VerbsFlowTest, WhoIsThereIsAskedNowAndThenAndKept) {
  Settings settings = OnFake();
  settings.peer_timeout = 20 * kMillisecond;
  ConnectedPair(settings);
  int sleeps = 0;
  const Nanos deadline = Now() + 20 * kSecond;
  while (sleeps < 20 && Now() < deadline) {
    b_.device->Poll();
    if (a_.device->Poll() > 0 || !a_.device->ArmNotification()) continue;
    a_.device->Sleep(deadline);
    ++sleeps;
  }
  EXPECT_EQ(sleeps, 20) << "it is not asked";
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
  ASSERT_TRUE(a_.Notify("still there").ok());
  EXPECT_TRUE(PollUntil([&] { return !b_.handler->notes.empty(); }));
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
