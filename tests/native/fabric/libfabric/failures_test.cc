// How libfabric channels fail: whatever the provider or the way to the peer does, both sides learn
// the reason once, and nothing that was lost goes unnoticed.

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using testing::ExpectHas;
using testing::Faulty;
using testing::FaultyCounters;
using testing::kCxi;
using testing::kUnorderedProvider;
using testing::OnFaulty;
using testing::SetFaulty;
using testing::Side;

Settings Impatient() {
  Settings settings = OnFaulty();
  settings.peer_timeout = 300 * kMillisecond;
  return settings;
}

class LibfabricFailuresTest : public testing::LibfabricPairTest {};

// --- What is lost ---

TEST_F(LibfabricFailuresTest, ALostMessageEndsTheChannel) {
  ConnectedPair(Impatient());
  ExpectToTalk();
  ASSERT_EQ(Faulty().lose_next("send"), 0);
  ASSERT_TRUE(a_.Notify("lost").ok());
  ASSERT_TRUE(a_.Notify("and the next").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_EQ(b_.handler->notes.size(), 1u) << "nothing is read beyond a gap";
  EXPECT_EQ(b_.handler->reason.code(), Code::kUnavailable);
  ExpectHas(b_.handler->reason, "was lost on the way");
  ExpectHas(a_.handler->reason, "was lost on the way");
  EXPECT_EQ(a_.handler->delivered, 1u);
  ExpectClosedOnce();
  ExpectToWork();
}

// --- Errors of the provider ---

class EachKind : public LibfabricFailuresTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(EachKind, AnOperationThatFailsEndsBothSidesWithItsReason) {
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  PollFor(30 * kMillisecond);  // until all is confirmed
  ASSERT_EQ(Faulty().fail_next(GetParam()), 0);
  const RemoteSpan span = {remote->key(), 0, 100};
  const std::string kind = GetParam();
  if (kind == "send") {
    ASSERT_TRUE(a_.Notify("never").ok());
  } else if (kind == "write") {
    ASSERT_TRUE(a_.channel->Write(local->address(), span, 1).ok());
  } else {
    ASSERT_TRUE(a_.channel->Read(span, local->address(), 1).ok());
  }
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectHas(a_.handler->reason, "Input/output error");
  ExpectHas(a_.handler->reason, a_.channel->Route());
  ExpectHas(b_.handler->reason, "the peer closed the channel: ");
  ExpectHas(b_.handler->reason, "Input/output error");
  EXPECT_EQ(a_.handler->reason.code(), Code::kUnavailable);
  EXPECT_TRUE(a_.handler->transfers.empty());
  EXPECT_EQ(b_.handler->notes.size(), 0u);
  ExpectClosedOnce();
  ExpectToWork();
}

INSTANTIATE_TEST_SUITE_P(, EachKind, ::testing::Values("send", "write", "read"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(LibfabricFailuresTest, AReceiveThatFailsIsPostedAgain) {
  ConnectedPair();
  ASSERT_EQ(Faulty().fail_next("receive"), 0);
  ASSERT_EQ(Faulty().fail_next("receive"), 0);
  for (int i = 0; i < 600; ++i) ASSERT_TRUE(a_.Notify(std::to_string(i)).ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 600; }));
  EXPECT_EQ(FaultyCounters().failed_completions, 2u);
}

TEST_F(LibfabricFailuresTest, AProviderThatRefusesForAWhileLosesNothing) {
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (int round = 0; round < 3; ++round) {
    Faulty().eagain_for(200);
    for (int i = 0; i < 50; ++i) {
      const RemoteSpan span = {remote->key(), 0, 10'000};
      ASSERT_TRUE(a_.channel->Write(local->address(), span, 1).ok());
      ASSERT_TRUE(a_.Notify(std::to_string(i)).ok());
      ASSERT_TRUE(b_.Notify(std::to_string(i)).ok());
    }
    ASSERT_TRUE(PollUntil([&] {
      return a_.handler->notes.size() == 50u * (round + 1) + 1 &&
             b_.handler->notes.size() == 50u * (round + 1);
    })) << a_.handler->reason.message();
  }
  EXPECT_GT(FaultyCounters().eagain, 0u);
  // The device calms down afterwards.
  EXPECT_TRUE(PollUntil([&] { return a_.device->Poll() == 0 && a_.device->ArmNotification(); }));
}

TEST_F(LibfabricFailuresTest, AProviderThatRefusesForTooLongEndsTheChannel) {
  ConnectedPair();
  PollFor(30 * kMillisecond);
  Faulty().eagain_for(60'000);
  ASSERT_TRUE(a_.Notify("never").ok());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  ExpectHas(a_.handler->reason, "takes no operations");
  EXPECT_EQ(b_.handler->notes.size(), 0u);
  Faulty().eagain_for(0);
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  ExpectToWork();
}

TEST_F(LibfabricFailuresTest, AShortTransmitQueueOnlyTakesLonger) {
  SetFaulty("tx_size=3 late=500");
  ConnectedPair();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 20'000}, 1).ok());
    ASSERT_TRUE(a_.Notify("x").ok());
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() == 100; }));
  EXPECT_GT(FaultyCounters().tx_full, 0u);
}

// --- Peers that are gone, or stopped ---

// A peer in another process, which does nothing but poll.
class PeerProcess {
 public:
  ~PeerProcess() {
    if (child_ > 0) Kill();
    for (const int fd : fds_) close(fd);
  }
  // Starts it, and connects it to the channel with this address. Returns its own.
  std::string Start(const Settings& settings, const std::string& address) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds_), 0);
    child_ = fork();
    if (child_ == 0) Run(settings, address);
    char bytes[4096];
    const ssize_t length = read(fds_[0], bytes, sizeof(bytes));
    EXPECT_GT(length, 0);
    return std::string(bytes, static_cast<size_t>(std::max<ssize_t>(length, 0)));
  }
  void Stop() { EXPECT_EQ(kill(child_, SIGSTOP), 0); }
  void Resume() { EXPECT_EQ(kill(child_, SIGCONT), 0); }
  // From now on, nothing that is sent to it arrives, as if its host had lost its power.
  void LoseHost() {
    ASSERT_EQ(send(fds_[0], "x", 1, 0), 1);
    char byte = 0;
    ASSERT_EQ(read(fds_[0], &byte, 1), 1);
  }
  void Kill() {
    EXPECT_EQ(kill(child_, SIGKILL), 0);
    EXPECT_EQ(waitpid(child_, nullptr, 0), child_);
    child_ = -1;
  }

 private:
  [[noreturn]] void Run(const Settings& settings, const std::string& address) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Side side;
    side.handler = std::make_shared<testing::Recorder>();
    if (!OpenDevice(settings, &side.device).ok() ||
        !side.device->Open(side.handler, &side.channel).ok() ||
        !side.channel->Connect(address, Role::kPassive).ok()) {
      _exit(1);
    }
    const std::string own = side.channel->Address();
    if (write(fds_[1], own.data(), own.size()) < 0) _exit(1);
    while (true) {
      char byte = 0;
      if (recv(fds_[1], &byte, 1, MSG_DONTWAIT) == 1) {
        DropAll();
        if (write(fds_[1], &byte, 1) != 1) _exit(1);
      }
      if (side.device->Poll() == 0 && side.device->ArmNotification()) {
        side.device->Sleep(Now() + 10 * kMillisecond);
      }
    }
  }
  // Gives each network socket of this process a filter that drops what arrives.
  static void DropAll() {
    sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program = {1, &drop};
    for (int fd = 0; fd < 1024; ++fd) {
      int domain = 0;
      socklen_t length = sizeof(domain);
      if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain == AF_UNIX) {
        continue;
      }
      if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0) _exit(1);
    }
  }

  pid_t child_ = -1;
  int fds_[2] = {-1, -1};
};

class PeerProcessTest : public LibfabricFailuresTest {
 protected:
  void ConnectTo(PeerProcess* peer) {
    ASSERT_TRUE(OpenDevice(Impatient(), &a_.device).ok());
    ASSERT_TRUE(OpenChannel(&a_).ok());
    const std::string address = peer->Start(Impatient(), a_.channel->Address());
    ASSERT_TRUE(a_.channel->Connect(address, Role::kActive).ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->connected; })) << a_.handler->reason.message();
  }
  // Connects to it, and shares a region with it.
  void ShareWith(PeerProcess* peer, std::unique_ptr<Region>* region) {
    ASSERT_NO_FATAL_FAILURE(ConnectTo(peer));
    *region = Allocate(a_);
    ASSERT_TRUE(a_.channel->Share((*region)->key()).ok());
    ASSERT_TRUE(a_.Notify("there").ok());
    ASSERT_TRUE(PollUntil([&] { return a_.handler->delivered == 1; }));
  }
};

TEST_F(PeerProcessTest, APeerThatVanishesIsNoticedAndReleases) {
  PeerProcess peer;
  std::unique_ptr<Region> region;
  ASSERT_NO_FATAL_FAILURE(ShareWith(&peer, &region));
  peer.Kill();
  ASSERT_TRUE(PollUntil([&] {
    a_.Notify("are you there?").IgnoreError();
    return a_.handler->closed;
  }));
  // Its process cannot access anything any more.
  EXPECT_TRUE(PollUntil(
      [&] { return a_.handler->released || a_.handler->reason.code() == Code::kUnavailable; }));
}

TEST_F(PeerProcessTest, AnIdlePeerThatVanishesIsNoticedToo) {
  PeerProcess peer;
  ASSERT_NO_FATAL_FAILURE(ConnectTo(&peer));
  peer.Kill();
  EXPECT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  EXPECT_TRUE(PollUntil(
      [&] { return a_.handler->released || a_.handler->reason.code() == Code::kUnavailable; }));
}

TEST_F(PeerProcessTest, AnIdleHostThatVanishesIsNoticedToo) {
  PeerProcess peer;
  std::unique_ptr<Region> region;
  ASSERT_NO_FATAL_FAILURE(ShareWith(&peer, &region));
  ASSERT_NO_FATAL_FAILURE(peer.LoseHost());
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  EXPECT_TRUE(PollUntil(
      [&] { return a_.handler->released || a_.handler->reason.code() == Code::kUnavailable; }));
}

class EachProvider : public PeerProcessTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    PeerProcessTest::SetUp();
    SetFaulty(GetParam());
  }
};

TEST_P(EachProvider, AProcessThatIsStoppedReleasesWhenItResumes) {
  PeerProcess peer;
  std::unique_ptr<Region> region;
  ASSERT_NO_FATAL_FAILURE(ShareWith(&peer, &region));
  peer.Stop();
  a_.channel->Close(Status(Code::kAborted, "enough"));
  ASSERT_TRUE(PollUntil([&] { return a_.handler->closed; }));
  EXPECT_EQ(a_.handler->reason.code(), Code::kAborted);
  PollFor(300 * kMillisecond);
  EXPECT_FALSE(a_.handler->released);
  peer.Resume();
  EXPECT_TRUE(PollUntil([&] { return a_.handler->released; }));
}

// Its last message waits in the provider, which only moves while the device is polled.
TEST_F(PeerProcessTest, ItsLastMessageArrivesAfterItsChannelHasEnded) {
  SetFaulty("order=none delay_us=50000");
  for (int seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SetFaulty("seed=" + std::to_string(seed));
    PeerProcess peer;
    ASSERT_NO_FATAL_FAILURE(ConnectTo(&peer));
    a_.channel->Close(Status(Code::kAborted, "enough"));
    ASSERT_TRUE(PollUntil(
        [&] { return a_.handler->released || a_.handler->reason.code() == Code::kUnavailable; }));
    DropDevices();
  }
}

TEST_P(EachProvider, AStoppedPeerMayGoOnUntilItResumes) {
  ConnectedPair();
  const auto readable = Allocate(a_);
  Share(a_, *readable);
  auto mine = Shared(b_);
  std::strcpy(readable->address(), "still");
  // b starts to read and stops.
  const auto into = Allocate(b_);
  a_.channel->Close(Status(Code::kAborted, "enough"));
  const Nanos deadline = Now() + 20 * kSecond;
  while (!a_.handler->closed && Now() < deadline) PollOne(a_);
  ASSERT_TRUE(a_.handler->closed);
  EXPECT_EQ(a_.handler->reason.code(), Code::kAborted);
  ExpectHas(a_.handler->reason, "enough");
  EXPECT_FALSE(a_.handler->released);
  // Meanwhile, the processor rests.
  const Nanos quiet = Now() + 2 * kSecond;
  while (a_.device->Poll() > 0 || !a_.device->ArmNotification()) {
    ASSERT_LT(Now(), quiet) << "the device never sleeps";
  }
  EXPECT_FALSE(a_.handler->released);
  ASSERT_TRUE(PollUntil([&] { return b_.handler->closed && a_.handler->released; }));
  ExpectHas(b_.handler->reason, "the peer closed the channel: enough");
  EXPECT_EQ(b_.handler->reason.code(), Code::kUnavailable);
  ExpectToWork();
}

TEST_P(EachProvider, AChannelThatNobodyWantsRestsWhileThePeerIsStopped) {
  ConnectedPair();
  a_.channel.reset();
  a_.handler.reset();
  const Nanos until = Now() + 900 * kMillisecond;
  while (Now() < until) PollOne(a_);
  const Nanos quiet = Now() + 5 * kSecond;
  while (a_.device->Poll() > 0 || !a_.device->ArmNotification()) {
    ASSERT_LT(Now(), quiet) << "the device never sleeps";
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->closed; }));
  ExpectHas(b_.handler->reason, "the user of this channel has gone");
}

// Nothing follows it, so the peer does not see a gap by itself.
TEST_P(EachProvider, ALostLastMessageIsNoticed) {
  ConnectedPair(Impatient());
  PollFor(30 * kMillisecond);  // until all is confirmed
  ASSERT_EQ(Faulty().lose_next("send"), 0);
  ASSERT_TRUE(a_.Notify("lost").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_EQ(b_.handler->notes.size(), 0u);
  ExpectHas(b_.handler->reason, "was lost on the way");
}

TEST_P(EachProvider, ALostConfirmationIsAskedForAgain) {
  ConnectedPair(Impatient());
  PollFor(30 * kMillisecond);
  ASSERT_TRUE(a_.Notify("there").ok());
  ASSERT_TRUE(PollUntil([&] {
    PollOne(b_);
    return b_.handler->notes.size() == 1;
  }));
  ASSERT_EQ(Faulty().lose_next("send"), 0);
  EXPECT_TRUE(PollUntil([&] { return a_.handler->delivered == 1; }));
  ExpectToTalk();
}

TEST_P(EachProvider, ALostWriteIsNotMistakenForOneThatArrived) {
  if (GetParam() == std::string(kCxi)) GTEST_SKIP() << "its writes are acknowledged";
  ConnectedPair(Impatient());
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  std::memset(local->address(), 'x', 3 * 4096);
  ASSERT_EQ(Faulty().lose_next("write"), 0);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 3 * 4096}, 1).ok());
  ASSERT_TRUE(a_.Notify("written").ok());
  ASSERT_TRUE(PollUntil([&] { return BothClosed(); }));
  EXPECT_EQ(b_.handler->notes.size(), 0u);
  ExpectHas(b_.handler->reason, "was lost on the way");
  ExpectClosedOnce();
}

// Writes that completed before they arrived may still be on their way when the channel ends.
TEST_P(EachProvider, MemoryIsNotReleasedBeforeTheLastWriteIsThere) {
  // With another channel, both devices go on when this one has ended.
  ConnectedPair();
  Side others[2];
  std::swap(others[0].handler, a_.handler);
  std::swap(others[0].channel, a_.channel);
  std::swap(others[1].handler, b_.handler);
  std::swap(others[1].channel, b_.channel);
  Connect();
  const auto remote = Shared(b_);
  const auto local = Allocate(a_);
  std::strcpy(local->address(), "late");
  Faulty().hold_writes(1);
  ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 5}, 1).ok());
  a_.channel->Close(Status(Code::kAborted, "enough"));
  const auto released = [&] {
    return b_.handler->released ||
           (b_.handler->closed && b_.handler->reason.code() == Code::kUnavailable);
  };
  // Whether it is released at once or later, it does not change any more.
  if (!PollUntil(released, 300 * kMillisecond)) {
    Faulty().hold_writes(0);
    ASSERT_TRUE(PollUntil([&] { return a_.handler->closed && released(); }));
  }
  const std::string then = remote->address();
  Faulty().hold_writes(0);
  PollFor(100 * kMillisecond);
  EXPECT_EQ(remote->address(), then);
}

TEST_P(EachProvider, ClosingUnderAFloodTellsTheReason) {
  OpenDevices();
  for (const size_t length : {size_t{1}, size_t{4000}}) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    const auto remote = Shared(b_);
    const auto local = Allocate(a_);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(a_.channel->Write(local->address(), {remote->key(), 0, 9000}, 1).ok());
      ASSERT_TRUE(a_.Notify(std::string(length, 'a')).ok());
      ASSERT_TRUE(b_.Notify(std::string(length, 'b')).ok());
    }
    std::thread closer([&] { a_.channel->Close(Status(Code::kAborted, "enough")); });
    const bool closed = PollUntil([&] { return BothClosed(); });
    closer.join();
    ASSERT_TRUE(closed);
    ExpectHas(a_.handler->reason, "enough");
    ExpectHas(b_.handler->reason, "enough");
    ExpectClosedOnce();
    Drop();
  }
}

std::string ProviderName(const ::testing::TestParamInfo<const char*>& info) {
  return info.index == 0 ? "Tcp" : info.index == 1 ? "Unordered" : "NoRemoteData";
}
INSTANTIATE_TEST_SUITE_P(, EachProvider,
                         ::testing::Values("order=provider", kUnorderedProvider, kCxi),
                         ProviderName);

// --- Strangers and forks ---

TEST_F(LibfabricFailuresTest, AnAddressThatIsNoneOfThisProviderIsRefused) {
  ConnectedPair();
  const std::string address = b_.channel->Address();
  for (const size_t cut : {size_t{1}, size_t{8}, size_t{15}}) {
    // The name lies before the token of 16 bytes, and is a sockaddr_in.
    std::string shorter = address;
    shorter.erase(address.size() - 16 - cut, cut);
    std::shared_ptr<Channel> channel;
    auto handler = std::make_shared<testing::Recorder>();
    ASSERT_TRUE(a_.device->Open(handler, &channel).ok());
    EXPECT_EQ(channel->Connect(shorter, Role::kActive).code(), Code::kInvalidArgument);
  }
  // An address of another family, which the provider would take for a longer one.
  std::string other = address;
  other[address.size() - 32] = AF_INET6;
  std::shared_ptr<Channel> channel;
  auto handler = std::make_shared<testing::Recorder>();
  ASSERT_TRUE(a_.device->Open(handler, &channel).ok());
  EXPECT_EQ(channel->Connect(other, Role::kActive).code(), Code::kInvalidArgument);
  ExpectToTalk();
}

TEST_F(LibfabricFailuresTest, AForkedChildDoesNotDisturbItsParent) {
  ConnectedPair();
  auto region = Shared(a_);
  ExpectToTalk();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = a_.device->Usable() ? 1 : 0;
    wrong |= a_.Notify("from the child").ok() ? 2 : 0;
    a_.channel->Close(Status(Code::kAborted, "from the child"));
    wrong |= a_.device->Poll() != 0 ? 4 : 0;
    region.reset();
    a_.channel.reset();
    a_.handler.reset();
    a_.device.reset();
    _exit(wrong);
  }
  int status = 0;
  ASSERT_TRUE(PollUntil([&] { return waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (int i = 0; i < 100; ++i) ExpectToTalk();
  EXPECT_FALSE(a_.handler->closed || b_.handler->closed);
  const auto local = Allocate(b_);
  ASSERT_TRUE(b_.channel->Read({region->key(), 0, 100}, local->address(), 1).ok());
  ASSERT_TRUE(PollUntil([&] { return b_.handler->transfers.size() == 1; }));
  EXPECT_TRUE(b_.handler->transfers[0].second.ok());
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
