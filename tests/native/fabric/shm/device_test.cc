// What a hostile or unlucky peer on this host can do to a device of shared memory: raw messages on
// its socket, odd descriptors, and ends without a goodbye.

#include "fabric/shm/device.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "fabric/greeting.h"
#include "fabric/host/memory_file.h"
#include "fabric/shm/address.h"
#include "recorder.h"
#include "task.h"

namespace rdma_transport::fabric::shm {
namespace {

using rdma_transport::testing::Eventually;
using rdma_transport::testing::Recorder;

const std::string kOwnToken(kTokenLength, 'p');

std::atomic<int> g_lines{0};
void CountLine(LogLevel, const std::string&) { g_lines.fetch_add(1); }

host::FileDescriptor MemoryFile(size_t length, bool sealed = true, bool filled = true) {
  host::FileDescriptor fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(length)), 0);
  const int allocated = filled ? fallocate(fd.get(), 0, 0, static_cast<off_t>(length)) : 0;
  EXPECT_EQ(allocated, 0);
  const int seals = sealed ? fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) : 0;
  EXPECT_EQ(seals, 0);
  return fd;
}

// A peer that is only a socket, a ring, and what it maps.
struct RawPeer {
  host::FileDescriptor socket;
  RingConsumer ring;
  RingProducer theirs;
};

// A device with one passive channel, and a peer that is only a socket and a ring.
class ShmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogLevel(LogLevel::kWarning);
    SetLogSink(&CountLine);
    g_lines.store(0);
    ASSERT_TRUE(ShmDevice::Create(Settings(), &device_).ok());
    Expect();
  }
  void TearDown() override {
    channel_.reset();
    device_.reset();
    SetLogSink(nullptr);
    SetLogLevel(LogLevel::kInfo);
  }
  // A new passive channel waits for its peer.
  void Expect() {
    handler_ = std::make_shared<Recorder>();
    ASSERT_TRUE(device_->Open(handler_, &channel_).ok());
    ASSERT_TRUE(ChannelAddress::Decode(channel_->Address(), &address_).ok());
    const ChannelAddress mine = {"nobody", kOwnToken, address_.host};
    ASSERT_TRUE(channel_->Connect(mine.Encode(), Role::kPassive).ok());
  }
  // Connects as a peer that follows the rules.
  void Meet() {
    peer_ = std::make_unique<RawPeer>();
    ASSERT_TRUE(ConnectTo(address_.socket_name, &peer_->socket).ok());
    ASSERT_TRUE(peer_->ring.Create().ok());
    Hello hello = {};
    hello.type = MessageType::kHello;
    hello.device_id = 4711;
    const Greeting greeting("", Role::kActive, kOwnToken, address_.token);
    std::memcpy(hello.greeting, greeting.own().data(), sizeof(hello.greeting));
    ASSERT_TRUE(Send(hello, peer_->ring.fd()).ok());
    ASSERT_TRUE(PollUntil([&] { return handler_->connected; }));
    Message accept;
    ASSERT_TRUE(ReceiveMessage(peer_->socket.get(), &accept).ok());
    ASSERT_EQ(TypeOf(accept.bytes), MessageType::kAccept);
    ASSERT_EQ(accept.descriptors.size(), 1u);
    ASSERT_TRUE(peer_->theirs.Attach(accept.descriptors[0].get()).ok());
  }
  template <typename T>
  Status Send(const T& message, int descriptor = -1) {
    return SendMessage(peer_->socket.get(), AsBytes(message), descriptor);
  }
  Status Offer(uint64_t key, int fd, uint64_t length, bool writable = false) {
    return Send(RegionMessage{MessageType::kRegion, writable ? 1u : 0u, key, length}, fd);
  }
  template <typename Condition>
  bool PollUntil(Condition condition) {
    return Eventually([&] {
      device_->Poll();
      return condition();
    });
  }
  void ArmNotification() {
    ASSERT_TRUE(Eventually([&] { return device_->Poll() == 0 && device_->ArmNotification(); }));
  }
  Status Notify(const std::string& text) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    return channel_->Notify(&part, 1, Urgency::kWake);
  }

  std::unique_ptr<Device> device_;
  std::shared_ptr<Recorder> handler_;
  std::shared_ptr<Channel> channel_;
  ChannelAddress address_;
  std::unique_ptr<RawPeer> peer_;
};

TEST_F(ShmTest, TheEndOfAStreamWithoutAGoodbyeIsTheEndOfThePeer) {
  Meet();
  ASSERT_TRUE(Notify("lost with it").ok());
  peer_->socket.Reset();
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  EXPECT_EQ(handler_->reason.code(), Code::kUnavailable);
  EXPECT_EQ(handler_->delivered, 1u) << "the dead need nothing again";
  EXPECT_FALSE(handler_->released);
}

TEST_F(ShmTest, APeerThatSaidGoodbyeIsWaitedForUntilItsStreamEnds) {
  Meet();
  ASSERT_TRUE(Send(Bye{MessageType::kBye, 0, "enough"}).ok());
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  EXPECT_EQ(handler_->reason.code(), Code::kAborted);
  for (int i = 0; i < 100; ++i) device_->Poll();
  EXPECT_FALSE(handler_->released);
  shutdown(peer_->socket.get(), SHUT_WR);
  EXPECT_TRUE(PollUntil([&] { return handler_->released; }));
}

TEST_F(ShmTest, NobodyButTheKernelSaysThatThePeerIsGone) {
  Meet();
  channel_->Close(Status(Code::kUnavailable, "somebody thinks so"));
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  EXPECT_EQ(handler_->reason.code(), Code::kAborted);
}

TEST_F(ShmTest, AGoodbyeThatFindsNoRoomIsSaidLater) {
  Meet();
  const auto memory = MemoryFile(Window::kGranule, true);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  ASSERT_TRUE(Offer(1, memory.get(), Window::kGranule).ok());
  MappedSpan mapped;
  ASSERT_TRUE(PollUntil([&] { return (mapped = channel_->Map({1, 0, 1})).data != nullptr; }));
  // The peer does not read: what this side sends fills its socket.
  std::vector<std::unique_ptr<Region>> regions;
  Status shared;
  while (shared.ok() && regions.size() < 1000) {
    std::unique_ptr<Region> region;
    ASSERT_TRUE(device_->Allocate(Window::kGranule, Access::kRemoteRead, nullptr, &region).ok());
    const Status one = channel_->Share(region->key());
    if (!one.ok()) shared = one;
    regions.push_back(std::move(region));
  }
  ASSERT_EQ(shared.code(), Code::kResourceExhausted) << shared.message();
  channel_->Close(Status(Code::kAborted, "over"));
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  ArmNotification();
  std::vector<MessageType> got;
  bool ended = false;
  const auto read_all = [&] {
    device_->Poll();
    Message message;
    Status status;
    while ((status = ReceiveMessage(peer_->socket.get(), &message)).ok()) {
      got.push_back(TypeOf(message.bytes));
    }
    ended = status.code() == Code::kUnavailable;
    return !got.empty() && got.back() == MessageType::kBye;
  };
  EXPECT_TRUE(Eventually(read_all));
  EXPECT_FALSE(ended) << "a tensor of the peer is still in use here";
  mapped = {};
  EXPECT_TRUE(Eventually([&] {
    read_all();
    return ended;
  }));
}

TEST_F(ShmTest, ASenderIsNotBlockedByAPeerThatReadsNothing) {
  Meet();
  for (int i = 0; i < 5000; ++i) {
    peer_->ring.RaiseFlag();
    ASSERT_TRUE(Notify("x").ok());  // each one wakes
  }
}

TEST_F(ShmTest, NoPeerCanSwallowTheWakeUpOfAnother) {
  Meet();
  const auto hostile = std::move(peer_);
  const auto its_handler = handler_;
  const auto its_channel = channel_;
  Expect();
  Meet();
  ArmNotification();
  EXPECT_TRUE(hostile->theirs.TakeConsumerSleeps());  // and wakes nobody
  EXPECT_TRUE(peer_->theirs.TakeConsumerSleeps()) << "and wakes";
}

TEST_F(ShmTest, RoomThatWasReportedBeforeTheFlagWasRaisedKeepsTheDeviceAwake) {
  Meet();
  while (channel_->backlog().waiting_bytes == 0) ASSERT_TRUE(Notify(std::string(4000, '.')).ok());
  ArmNotification();  // it sleeps while there is no room
  device_->Poll();
  const char* data = nullptr;
  size_t length = 0;
  ASSERT_TRUE(peer_->ring.Peek(&data, &length).ok());
  peer_->ring.Pop();
  ASSERT_TRUE(peer_->ring.TakeProducerWaits());
  ASSERT_FALSE(peer_->theirs.TakeConsumerSleeps()) << "so the peer does not ring";
  EXPECT_FALSE(device_->ArmNotification());
  EXPECT_EQ(device_->Poll(), 1) << "what left the queue counts as work";
  EXPECT_EQ(channel_->backlog().waiting_bytes, 0u);
}

// While the device is awake: an idle channel is not looked at in each turn, so its peer must ring.
TEST_F(ShmTest, AnIdleChannelKeepsItsFlagRaisedUntilItIsUsed) {
  Meet();
  const iovec part = {const_cast<char*>("note"), 4};
  for (size_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(PollUntil([&] { return peer_->theirs.TakeConsumerSleeps(); })) << "it never rests";
    ASSERT_TRUE(peer_->theirs.Push(&part, 1, 4));
    ASSERT_TRUE(Send(Wake{MessageType::kWake}).ok());
    ASSERT_TRUE(PollUntil([&] { return handler_->notes.size() == round; }));
  }
  // What this side says is used, too: it waits to hear that it was taken.
  ASSERT_TRUE(PollUntil([&] { return peer_->theirs.TakeConsumerSleeps(); }));
  ASSERT_TRUE(Notify("x").ok());
  const char* data = nullptr;
  size_t length = 0;
  ASSERT_TRUE(peer_->ring.Peek(&data, &length).ok());
  peer_->ring.Pop();
  EXPECT_TRUE(PollUntil([&] { return handler_->delivered == 1; }));
}

// A peer that does not ring is only heard later.
TEST_F(ShmTest, AnIdleChannelIsHeardAlsoIfItsPeerDoesNotRing) {
  Meet();
  const iovec part = {const_cast<char*>("note"), 4};
  ASSERT_TRUE(PollUntil([&] { return peer_->theirs.TakeConsumerSleeps(); }));
  ASSERT_TRUE(peer_->theirs.Push(&part, 1, 4));
  EXPECT_TRUE(PollUntil([&] { return handler_->notes.size() == 1; }));
}

TEST_F(ShmTest, MemoryWhosePagesAreNotThereIsRefused) {
  Meet();
  constexpr size_t kLength = size_t{1} << 36;
  const auto sparse = MemoryFile(kLength, true, /*filled=*/false);
  ASSERT_TRUE(Offer(1, sparse.get(), kLength).ok());
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  Expect();
  Meet();
  const auto small = MemoryFile(Window::kGranule, true, /*filled=*/false);
  ASSERT_TRUE(Offer(1, small.get(), Window::kGranule, /*writable=*/true).ok());
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  EXPECT_EQ(handler_->reason.code(), Code::kInvalidArgument) << handler_->reason.message();
}

TEST_F(ShmTest, MemoryThatMayOnlyBeReadMustKeepItsPages) {
  Meet();
  const auto holes = MemoryFile(Window::kGranule);
  ASSERT_TRUE(Offer(1, holes.get(), Window::kGranule).ok());
  ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
  EXPECT_EQ(handler_->reason.code(), Code::kPermissionDenied) << handler_->reason.message();
}

TEST_F(ShmTest, WhatCannotBeMappedIsRefusedAndTheChannelStays) {
  Meet();
  const auto memory = MemoryFile(Window::kGranule);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  constexpr uint64_t kMost = 4096;
  for (uint64_t key = 1; key <= kMost + 1; ++key) {
    ASSERT_TRUE(Eventually([&] {
      device_->Poll();
      return Offer(key, memory.get(), Window::kGranule).ok();
    }));
  }
  Message answer;
  ASSERT_TRUE(PollUntil([&] { return ReceiveMessage(peer_->socket.get(), &answer).ok(); }));
  RegionKey refused;
  ASSERT_TRUE(FromBytes(answer.bytes, &refused).ok());
  EXPECT_EQ(refused.type, MessageType::kRefuse);
  EXPECT_EQ(refused.key, kMost + 1);
  EXPECT_FALSE(handler_->closed);
  EXPECT_NE(channel_->Map({1, 0, 1}).data, nullptr);
  EXPECT_EQ(channel_->Map({kMost + 1, 0, 1}).data, nullptr);
  EXPECT_EQ(g_lines.load(), 1);
}

TEST_F(ShmTest, WhatThePeerRefusesIsNotSharedAgain) {
  Meet();
  std::unique_ptr<Region> region;
  ASSERT_TRUE(device_->Allocate(Window::kGranule, Access::kRemoteRead, nullptr, &region).ok());
  ASSERT_TRUE(channel_->Share(region->key()).ok());
  ASSERT_TRUE(Send(RegionKey{MessageType::kRefuse, region->key()}).ok());
  ASSERT_TRUE(PollUntil([&] { return !channel_->Share(region->key()).ok(); }));
  EXPECT_EQ(channel_->Share(region->key()).code(), Code::kResourceExhausted);
  EXPECT_FALSE(handler_->closed);
}

TEST(Window, HoldsAllMemoryOfAHost) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  EXPECT_EQ(Window::SizeFor(16 * kGiB), 256 * kGiB);
  EXPECT_EQ(Window::SizeFor(1024 * kGiB), 2048 * kGiB);
  EXPECT_EQ(Window::SizeFor(1500 * kGiB), 4096 * kGiB);
  EXPECT_EQ(Window::SizeFor(uint64_t{1} << 60), uint64_t{1} << 45);
}

// One that does not listen is left alone in the end.
TEST_F(ShmTest, RegionsOfAPeerAreBounded) {
  Meet();
  const auto memory = MemoryFile(Window::kGranule);
  ASSERT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  for (uint64_t key = 1; key < 100'000 && !handler_->closed; ++key) {
    while (Offer(key, memory.get(), Window::kGranule).code() == Code::kResourceExhausted) {
      device_->Poll();
      if (handler_->closed) break;
    }
  }
  ASSERT_TRUE(handler_->closed);
  EXPECT_EQ(handler_->reason.code(), Code::kResourceExhausted) << handler_->reason.message();
}

TEST_F(ShmTest, OddDescriptorsEndTheChannelAndNothingElse) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const host::FileDescriptor reader(pipe_ends[0]), writer(pipe_ends[1]);
  const auto unsealed = MemoryFile(Window::kGranule, /*sealed=*/false);
  for (const int fd : {-1, reader.get(), writer.get(), unsealed.get()}) {
    Meet();
    ASSERT_TRUE(Offer(1, fd, Window::kGranule).ok());
    ASSERT_TRUE(PollUntil([&] { return handler_->closed; }));
    Expect();
  }
  Meet();
}

TEST_F(ShmTest, StrangersAreFewAndTheirLogIsShort) {
  std::vector<host::FileDescriptor> silent(300);
  for (auto& socket : silent) {
    ASSERT_TRUE(ConnectTo(address_.socket_name, &socket).ok());
    device_->Poll();
    device_->Sleep(1);
  }
  for (int i = 0; i < 400; ++i) {
    host::FileDescriptor socket;
    ASSERT_TRUE(ConnectTo(address_.socket_name, &socket).ok());
    ASSERT_TRUE(SendMessage(socket.get(), "garbage").ok());
    device_->Sleep(1);
    device_->Poll();
  }
  Meet();
  EXPECT_LE(g_lines.load(), 20);
  int kept = 0;
  for (const auto& socket : silent) {
    char byte;
    kept += recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 ? 1 : 0;
  }
  EXPECT_LE(kept, 64);
}

TEST_F(ShmTest, WithoutDescriptorsTheListenerIsLeftAloneForAWhile) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  host::FileDescriptor caller;
  ASSERT_TRUE(ConnectTo(address_.socket_name, &caller).ok());
  const int lowest = dup(0);
  const rlimit none = {static_cast<rlim_t>(lowest), before.rlim_max};
  close(lowest);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int turns = 0;
  for (const Nanos end = Now() + kSecond; Now() < end; ++turns) {
    device_->Poll();
    if (device_->ArmNotification()) device_->Sleep(end);
  }
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_LT(turns, 1000) << "a sleeper that never sleeps";
  EXPECT_LE(g_lines.load(), 20);
  caller.Reset();
  Meet();
}

TEST_F(ShmTest, APeerThatNeverStopsSendingDoesNotKeepThePollingThread) {
  Meet();
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    const iovec part = {const_cast<char*>("note"), 4};
    for (uint64_t i = 0; !stop.load(); ++i) {
      Send(RegionKey{MessageType::kWithdraw, i}).IgnoreError();
      peer_->theirs.Push(&part, 1, 4);
    }
  });
  // Each turn ends, also when the peer has ended its stream, or said goodbye, and goes on.
  for (int i = 0; i < 200; ++i) device_->Poll();
  Send(Bye{MessageType::kBye, 0, "not really"}).IgnoreError();
  EXPECT_TRUE(PollUntil([&] {
    Send(Bye{MessageType::kBye, 0, "not really"}).IgnoreError();
    return handler_->closed;
  }));
  stop.store(true);
  sender.join();
}

TEST_F(ShmTest, TheLastReferenceToAChannelMayGoAnywhere) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        alarm(30);
        std::atomic<bool> stop{false};
        std::thread poller([&] {
          while (!stop.load()) device_->Poll();
        });
        for (int round = 0; round < 40; ++round) {
          std::vector<std::shared_ptr<Channel>> channels(200);
          for (auto& channel : channels) {
            if (!device_->Open(std::make_shared<Recorder>(), &channel).ok()) _exit(1);
          }
          for (auto& channel : channels) channel->Close(Status(Code::kAborted, "over"));
          for (auto& channel : channels) channel.reset();
        }
        stop.store(true);
        poller.join();
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace rdma_transport::fabric::shm
