// Two verbs devices over the fake library, with several ports.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "verbs_pair.h"

namespace rdma_transport::testing {

class SeveralPorts : public VerbsPairTest {
 protected:
  static constexpr uint64_t kLength = 2 << 20;

  void SetUp() override {
    VerbsPairTest::SetUp();
    SlowPorts();
  }
  // All transfers of these tests are large for ports of 10 Gb/s.
  static void SlowPorts() {
    SetFake("active_width", "1");
    SetFake("active_speed", "8");
  }
  static Settings Wide(const std::string& devices = "") {
    Settings settings = OnFake();
    settings.verbs.chunk = 64 << 10;
    settings.verbs.devices = devices;
    return settings;
  }
  static uint64_t BytesOf(const char* device, int port = 1) {
    return Fake().port_bytes(device, port);
  }
  static void Fill(fabric::Region* region, unsigned seed) {
    for (uint64_t i = 0; i < kLength; ++i) {
      region->address()[i] = static_cast<char>(i * 7 + i / 4096 + seed);
    }
  }
  // Writes and reads all of a region, and compares.
  void ExpectToMove() {
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    Fill(local.get(), ++seed_);
    const fabric::RemoteSpan span = {remote->key(), 0, kLength};
    const size_t before = b_.handler->notes.size();
    ASSERT_TRUE(a_.channel->Write(local->address(), span, ++cookie_).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() > before; }));
    EXPECT_EQ(std::memcmp(remote->address(), local->address(), kLength), 0);
    Fill(remote.get(), ++seed_);
    ASSERT_TRUE(a_.channel->Read(span, local->address(), ++cookie_).ok());
    ASSERT_TRUE(PollUntil([&] { return Ended(cookie_); }));
    EXPECT_EQ(std::memcmp(remote->address(), local->address(), kLength), 0);
  }
  // Waits until both ends use a further port, or have left it.
  void ExpectToUse(bool used, const std::string& of_a, const std::string& of_b) {
    const auto uses = [](const Side& side, const std::string& port) {
      return side.channel->Route().find(", " + port) != std::string::npos;
    };
    ASSERT_TRUE(PollUntil([&] { return uses(a_, of_a) == used && uses(b_, of_b) == used; }))
        << a_.channel->Route() << " and " << b_.channel->Route();
  }
  void ExpectToUse(bool used, const std::string& port) { ExpectToUse(used, port, port); }
  // Two ends with two ports each, none of which they share.
  void ConnectTwoByTwo(Settings settings) {
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    settings.verbs.devices = "=fake_0,fake_1";
    ASSERT_TRUE(OpenDevice(settings, &a_.device).ok());
    settings.verbs.devices = "=fake_2,fake_3";
    ASSERT_TRUE(OpenDevice(settings, &b_.device).ok());
    ASSERT_NO_FATAL_FAILURE(Connect());
  }
  // Begins transfers in both directions, calls `disturb` while they are under way, and compares.
  template <typename Disturb>
  void MoveWhile(Disturb disturb) {
    const auto remote = Shared(b_, 4);
    const auto local = Allocate(a_, 4);
    Fill(local.get(), ++seed_);
    Fill(remote.get(), ++seed_);
    const std::string written(local->address(), kLength / 2);
    const std::string read(remote->address() + kLength / 2, kLength / 2);
    const uint64_t half = kLength / 2;
    ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, half}, ++cookie_).ok());
    ASSERT_TRUE(
        a_.channel->Read({remote->key(), half, half}, local->address() + half, ++cookie_).ok());
    ASSERT_TRUE(a_.Notify("written").ok());
    const size_t before = b_.handler->notes.size();
    disturb();
    SetFake("bandwidth", "0");
    EXPECT_FALSE(Ended(cookie_)) << "too late";
    ASSERT_TRUE(PollUntil([&] {
      return BothClosed() ||
             (b_.handler->notes.size() > before && Ended(cookie_) && Ended(cookie_ - 1));
    }));
    ASSERT_FALSE(a_.handler->closed) << a_.handler->reason.message();
    EXPECT_EQ(std::string(remote->address(), half), written);
    EXPECT_EQ(std::string(local->address() + half, half), read);
  }
  bool Ended(uint64_t cookie) const {
    return std::any_of(a_.handler->transfers.begin(), a_.handler->transfers.end(),
                       [&](const auto& one) { return one.first == cookie && one.second.ok(); });
  }

  unsigned seed_ = 0;
  uint64_t cookie_ = 0;
};

class FailingPorts : public SeveralPorts {
 protected:
  // Transfers of a MiB take a third of a second with both ports.
  void ConnectSlow(Nanos peer_timeout = 5 * kSecond) {
    Settings settings = Wide();
    settings.peer_timeout = peer_timeout;
    SetFake("devices", "fake_0,fake_1,fake_2,fake_3");
    ConnectTwoByTwo(settings);
    ExpectToUse(true, "fake_1:1", "fake_3:1");
    SetFake("bandwidth", "3000000");
  }
  // Packets between the further ports do not arrive: these are left, and taken back afterwards.
  void CutFurtherPathForAWhile() {
    MoveWhile([&] {
      PollFor(30 * kMillisecond);
      SetFake("fake_3.network", "7");
    });
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(false, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    SetFake("fake_3.network", "0");
    ASSERT_NO_FATAL_FAILURE(ExpectToUse(true, "fake_1:1", "fake_3:1"));
    ASSERT_NO_FATAL_FAILURE(ExpectToMove());
    EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
  }
};

}  // namespace rdma_transport::testing
