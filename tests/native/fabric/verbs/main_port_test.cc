// The port of the notifications fails, and another one takes its place. Ports that are down at
// first.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "several_ports.h"

namespace rdma_transport::fabric::verbs {
namespace {

using testing::FailingPorts;
using testing::Fake;
using testing::SetFake;
using testing::Side;

class MainPort : public FailingPorts {
 protected:
  static bool IsMain(const Side& side, const std::string& port) {
    return side.channel->Route().rfind(port + " ", 0) == 0;
  }
  void ExpectMain(const std::string& of_a, const std::string& of_b) {
    ASSERT_TRUE(PollUntil([&] { return BothClosed() || (IsMain(a_, of_a) && IsMain(b_, of_b)); }))
        << a_.channel->Route() << " and " << b_.channel->Route();
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
  }
  // Sends numbered notifications in both directions, as long as there is room for them.
  void Say() {
    for (Side* side : {&a_, &b_}) {
      if (side->Notify(std::to_string(said_[side]) + Padding(said_[side])).ok()) ++said_[side];
    }
  }
  static std::string Padding(uint64_t number) { return std::string(number * 37 % 900, '.'); }
  void SayFor(Nanos interval) {
    PollUntil(
        [&] {
          Say();
          return false;
        },
        interval);
  }
  // Each arrives once, in order, and is confirmed.
  void ExpectAllHeard() {
    for (Side* side : {&a_, &b_}) {
      Side* peer = side == &a_ ? &b_ : &a_;
      const auto& notes = peer->handler->notes;
      ASSERT_TRUE(PollUntil([&] {
        return BothClosed() || notes.size() - heard_[peer] >= said_[side] - from_[side];
      })) << notes.size() - heard_[peer]
          << " of " << said_[side] - from_[side];
      ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
      PollFor(5 * kMillisecond);
      ASSERT_EQ(notes.size() - heard_[peer], said_[side] - from_[side]);
      for (uint64_t i = from_[side]; i < said_[side]; ++i) {
        ASSERT_EQ(notes[heard_[peer] + i - from_[side]], std::to_string(i) + Padding(i));
      }
      from_[side] = said_[side];
      heard_[peer] = notes.size();
    }
  }
  void BeginToListen() {
    for (Side* side : {&a_, &b_}) heard_[side] = side->handler->notes.size();
  }

  std::map<const Side*, uint64_t> said_;
  std::map<const Side*, uint64_t> from_;  // checked up to here
  std::map<const Side*, size_t> heard_;
};

TEST_F(MainPort, OneThatGoesDownIsLeftByAllTrafficAndTakenBack) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  const std::string ports[][2] = {{"fake_0:1", "fake_2:1"}, {"fake_1:1", "fake_3:1"}};
  int now = 0;
  for (const char* device : {"fake_0", "fake_3", "fake_2", "fake_1"}) {
    SCOPED_TRACE(device);
    const std::string state = std::string(device) + ":1.port_state";
    SetFake("bandwidth", "3000000");
    MoveWhile([&] {
      PollFor(30 * kMillisecond);
      SetFake(state.c_str(), "down");
    });
    if (HasFatalFailure()) return;
    const int next = 1 - now;
    ASSERT_NO_FATAL_FAILURE(ExpectMain(ports[next][0], ports[next][1]));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    SetFake(state.c_str(), "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, ports[now][0], ports[now][1]));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    now = next;
  }
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

// Soft-RoCE stops its retries, and reports nothing, if the interface holds them.
TEST_F(MainPort, OneThatHoldsPacketsForEverIsLeft) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow(2 * kSecond));
  SetFake("retry_ms", "600000");
  BeginToListen();
  SayFor(20 * kMillisecond);
  SetFake("fake_2.network", "7");
  SayFor(20 * kMillisecond);
  ASSERT_NO_FATAL_FAILURE(ExpectMain("fake_1:1", "fake_3:1"));
  ASSERT_NO_FATAL_FAILURE(ExpectAllHeard());
  SetFake("fake_2.network", "0");
  ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_0:1", "fake_2:1"));
  SayFor(20 * kMillisecond);
  ASSERT_NO_FATAL_FAILURE(ExpectAllHeard());
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

// With so much memory that it takes long to announce it for the port.
TEST_F(MainPort, OneThatHasJustReturnedTakesThePlaceOfTheOther) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "0");
  std::vector<std::unique_ptr<Region>> memory;
  for (Side* side : {&a_, &b_}) {
    for (int i = 0; i < 40; ++i) memory.push_back(Shared(*side));
  }
  BeginToListen();
  const std::string ports[][2] = {{"fake_0:1", "fake_2:1"}, {"fake_1:1", "fake_3:1"}};
  int now = 0;
  for (const char* device : {"fake_0", "fake_1", "fake_2", "fake_3"}) {
    SCOPED_TRACE(device);
    const std::string state = std::string(device) + ":1.port_state";
    Say();
    SetFake(state.c_str(), "down");
    ASSERT_NO_FATAL_FAILURE(ExpectMain(ports[1 - now][0], ports[1 - now][1]));
    SetFake("bandwidth", "100000");
    SetFake(state.c_str(), "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, ports[now][0], ports[now][1]));
    now = 1 - now;
  }
  SetFake("bandwidth", "0");
  ASSERT_NO_FATAL_FAILURE(ExpectAllHeard());
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
}

// Whatever was under way: with writes of all sizes and their notifications.
TEST_F(MainPort, WritesTakeEffectOnceAndBeforeTheirNotifications) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("bandwidth", "200000000");
  std::mt19937 random(1);
  constexpr uint64_t kSlots = 8;
  constexpr uint64_t kSlot = 512 << 10;
  const auto remote = Shared(b_, 2);
  const auto local = Allocate(a_, 2);
  const size_t start = b_.handler->notes.size();
  std::deque<uint64_t> free;
  for (uint64_t i = 0; i < kSlots; ++i) free.push_back(i);
  std::vector<std::pair<uint64_t, uint64_t>> sent;  // slot and length
  size_t checked = 0;
  size_t seen = start;
  const auto check = [&] {
    for (; seen < b_.handler->notes.size(); ++seen) {
      if (b_.handler->notes[seen] == "there") continue;
      const auto [slot, length] = sent.at(checked);
      ASSERT_EQ(b_.handler->notes[seen], std::to_string(checked));
      char* bytes = remote->address() + slot * kSlot;
      const char value = static_cast<char>(checked);
      ASSERT_EQ(std::count(bytes, bytes + length, value), static_cast<std::ptrdiff_t>(length))
          << checked;
      // From here on the memory is used for something else.
      std::fill(bytes, bytes + length, static_cast<char>(value + 100));
      free.push_back(slot);
      ++checked;
    }
  };
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(round);
    const std::string device = "fake_" + std::to_string(random() % 4);
    const bool cut = random() % 2 == 0;
    const std::string key = device + (cut ? ".network" : ":1.port_state");
    const uint64_t down_at = sent.size() + random() % 10;
    const uint64_t end = sent.size() + 40;
    ASSERT_TRUE(PollUntil([&] {
      check();
      if (HasFatalFailure() || BothClosed()) return true;
      if (sent.size() == down_at) SetFake(key.c_str(), cut ? "7" : "down");
      if (!free.empty() && sent.size() < end) {
        const uint64_t slot = free.front();
        const uint64_t length = random() % 3 == 0 ? kSlot : 1 + random() % 20000;
        char* from = local->address() + slot * kSlot;
        std::fill(from, from + length, static_cast<char>(sent.size()));
        const uint64_t cookie = ++cookie_;
        EXPECT_TRUE(a_.channel->Write(from, {remote->key(), slot * kSlot, length}, cookie).ok());
        const std::string text = std::to_string(sent.size());
        const iovec part = {const_cast<char*>(text.data()), text.size()};
        EXPECT_TRUE(a_.channel->Notify(&part, 1, Urgency::kWake).ok());
        free.pop_front();
        sent.emplace_back(slot, length);
      }
      return checked == end;
    })) << checked
        << " of " << sent.size();
    ASSERT_FALSE(HasFatalFailure());
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
    // What was checked stays as it is.
    PollFor(2 * kMillisecond);
    for (uint64_t back = 1; back <= kSlots; ++back) {
      const auto [slot, length] = sent[sent.size() - back];
      const bool last = std::none_of(sent.end() - static_cast<std::ptrdiff_t>(back) + 1, sent.end(),
                                     [slot = slot](const auto& one) { return one.first == slot; });
      const char* bytes = remote->address() + slot * kSlot;
      const char value = static_cast<char>(sent.size() - back + 100);
      if (last) {
        ASSERT_EQ(std::count(bytes, bytes + length, value), static_cast<std::ptrdiff_t>(length));
      }
    }
    SetFake(key.c_str(), cut ? "0" : "active");
    ASSERT_TRUE(PollUntil([&] {
      return BothClosed() || (a_.channel->Route().find(", ") != std::string::npos &&
                              b_.channel->Route().find(", ") != std::string::npos);
    }));
    ExpectToTalk();  // so what was announced for the port has arrived
  }
}

// Two ends with two ports each, of which the second ones are down.
class StandbyPort : public MainPort {
 protected:
  void ConnectHalf(const std::vector<std::string>& down) {
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    for (const std::string& device : down) SetFake((device + ":1.port_state").c_str(), "down");
    Settings settings = Wide();
    ConnectTwoByTwo(settings);
  }
};

TEST_F(StandbyPort, IsUsedOnceItIsActive) {
  for (const std::vector<std::string>& down :
       {std::vector<std::string>{"fake_1", "fake_3"}, {"fake_1"}, {"fake_3"}}) {
    ASSERT_NO_FATAL_FAILURE(ConnectHalf(down));
    auto early = Shared(b_);
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    const uint64_t before = BytesOf("fake_1") + BytesOf("fake_3");
    for (const std::string& device : down) SetFake((device + ":1.port_state").c_str(), "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_GT(BytesOf("fake_1") + BytesOf("fake_3"), before + kLength / 4);
    auto local = Allocate(a_);
    Fill(local.get(), ++seed_);
    ASSERT_TRUE(a_.channel->Write(local->address(), {early->key(), 0, kLength}, ++cookie_).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    ASSERT_TRUE(PollUntil([&] { return Ended(cookie_); }));
    EXPECT_EQ(std::memcmp(early->address(), local->address(), kLength), 0);
    EXPECT_GT(BytesOf("fake_1") + BytesOf("fake_3"), before + kLength / 2)
        << "also for memory that is older";
    SetFake("fake_0:1.port_state", "down");
    ASSERT_NO_FATAL_FAILURE(ExpectMain("fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    SetFake("fake_0:1.port_state", "active");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_0:1", "fake_2:1"));
    early.reset();
    local.reset();
    DropDevices();
  }
}

TEST_F(StandbyPort, IsNotUsedIfItDoesNotReachThePeer) {
  SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
  SetFake("fake_1.network", "7");
  SetFake("fake_3.network", "8");
  ASSERT_NO_FATAL_FAILURE(ConnectHalf({"fake_1", "fake_3"}));
  SetFake("fake_1:1.port_state", "active");
  SetFake("fake_3:1.port_state", "active");
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  PollFor(300 * kMillisecond);
  ASSERT_NO_FATAL_FAILURE(ExpectToMove());
  EXPECT_EQ(BytesOf("fake_1") + BytesOf("fake_3"), 0u);
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
}

TEST_F(MainPort, WithoutAnyOtherTheChannelCloses) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  SetFake("fake_1.network", "7");
  SetFake("fake_2.network", "8");
  ASSERT_TRUE(a_.Notify("lost").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectClosedOnce();
  EXPECT_NE(a_.handler->reason.message().find("IBV_WC_RETRY_EXC_ERR"), std::string::npos)
      << a_.handler->reason.message();
}

TEST_F(MainPort, WithoutMemoryOnAnyOtherTheChannelCloses) {
  SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
  SetFake("fake_1.max_mr", "2");  // enough for its rings
  Settings settings = Wide();
  settings.peer_timeout = 1 * kSecond;
  ASSERT_NO_FATAL_FAILURE(ConnectTwoByTwo(settings));
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  SetFake("bandwidth", "1000000");
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, kLength}, ++cookie_).ok());
  PollFor(10 * kMillisecond);
  SetFake("fake_0:1.port_state", "down");
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectClosedOnce();
  EXPECT_FALSE(Ended(cookie_));
}

TEST_F(MainPort, APeerThatHasGoneIsNoticedOnAllPorts) {
  ASSERT_NO_FATAL_FAILURE(ConnectSlow());
  Fake().break_path(true);
  ASSERT_TRUE(a_.Notify("lost").ok());
  ASSERT_TRUE(b_.Notify("lost").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectClosedOnce();
  Fake().break_path(false);
  ASSERT_NO_FATAL_FAILURE(Connect());
  ExpectToMove();
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
