// Connections whose other end has vanished, which a filter that drops its packets imitates.

#include "fabric/libfabric/sockets.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "fabric/host/file_descriptor.h"

namespace rdma_transport::fabric::libfabric {
namespace {

using host::FileDescriptor;

constexpr char kHere[] = "127.0.0.1";
constexpr Nanos kLimit = 100 * kMillisecond;

class LibfabricSocketsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener.get(), generic, length), 0);
    ASSERT_EQ(listen(listener.get(), 1), 0);
    ASSERT_EQ(getsockname(listener.get(), generic, &length), 0);
    here_ = FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(here_.get(), generic, length), 0);
    there_ = FileDescriptor(accept(listener.get(), nullptr, nullptr));
    ASSERT_TRUE(there_.valid());
  }
  // From now on, nothing that is sent arrives.
  void Vanish() {
    sock_filter drop = {BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program = {1, &drop};
    ASSERT_EQ(setsockopt(there_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  }
  void Send() { ASSERT_EQ(send(here_.get(), "bytes", 5, MSG_NOSIGNAL), 5); }
  static void Pause() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }
  bool Limited(const std::string& host = kHere) { return LimitSilence(here_.get(), host, kLimit); }
  bool EventuallyLimited() {
    const Nanos deadline = Now() + 20 * kSecond;
    while (!Limited() && Now() < deadline) Pause();
    return Limited();
  }

  FileDescriptor here_;
  FileDescriptor there_;
};

TEST_F(LibfabricSocketsTest, AConnectionToAHostThatVanishedEnds) {
  ASSERT_NO_FATAL_FAILURE(Vanish());
  ASSERT_NO_FATAL_FAILURE(Send());
  ASSERT_TRUE(EventuallyLimited());
  pollfd ended = {here_.get(), POLLIN, 0};
  ASSERT_EQ(poll(&ended, 1, 60'000), 1);
  char byte = 0;
  EXPECT_EQ(recv(here_.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, ETIMEDOUT);
}

TEST_F(LibfabricSocketsTest, AnotherHostsConnectionIsLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(Vanish());
  ASSERT_NO_FATAL_FAILURE(Send());
  ASSERT_TRUE(EventuallyLimited());
  EXPECT_FALSE(Limited("192.0.2.1"));
  EXPECT_FALSE(Limited(""));
}

TEST_F(LibfabricSocketsTest, AConnectionThatOwesNothingIsLeftAlone) {
  ASSERT_NO_FATAL_FAILURE(Send());
  char bytes[5];
  ASSERT_EQ(recv(there_.get(), bytes, sizeof(bytes), MSG_WAITALL), 5);
  const Nanos until = Now() + 1500 * kMillisecond;  // longer than what counts as silence
  while (Now() < until) {
    ASSERT_FALSE(Limited());
    Pause();
  }
}

TEST_F(LibfabricSocketsTest, WhatIsNoTcpConnectionIsLeftAlone) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const FileDescriptor first(pair[0]);
  const FileDescriptor second(pair[1]);
  EXPECT_FALSE(LimitSilence(first.get(), kHere, kLimit));
  EXPECT_FALSE(LimitSilence(first.get(), "", kLimit));
  EXPECT_FALSE(LimitSilence(-1, kHere, kLimit));
}

TEST_F(LibfabricSocketsTest, WhatAnEpollDescriptorWatchesIsKnown) {
  const FileDescriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  EXPECT_TRUE(WatchedBy(epoll.get()).empty());
  epoll_event event = {};
  event.events = EPOLLIN;
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, here_.get(), &event), 0);
  EXPECT_EQ(WatchedBy(epoll.get()), std::vector<int>{here_.get()});
  EXPECT_TRUE(WatchedBy(here_.get()).empty());
  EXPECT_TRUE(IsSocket(here_.get()));
  EXPECT_FALSE(IsSocket(epoll.get()));
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
