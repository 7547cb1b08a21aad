// Who asks a process by its status socket, and how.
#include "protocol/status_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "protocol/process.h"
#include "protocol/trace.h"
#include "task.h"

namespace rdma_transport {
namespace {

class Client {
 public:
  Client() : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const std::string name =
        "rdma_transport.status." + std::to_string(geteuid()) + "." + std::to_string(getpid());
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
  }
  ~Client() { close(socket_); }

  void Say(const std::string& text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  void SayNoMore() const { shutdown(socket_, SHUT_WR); }
  std::string Line() const {
    std::string line;
    char next = 0;
    while (recv(socket_, &next, 1, 0) == 1 && next != '\n') line += next;
    return line;
  }
  std::string Rest() const {
    std::string text;
    char part[4096];
    ssize_t n;
    while ((n = recv(socket_, part, sizeof(part), 0)) > 0) text.append(part, n);
    return text;
  }

 private:
  const int socket_;
};

class StatusSocketTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(socket_.Start().ok()); }
  StatusSocket socket_{&ProcessStatsJson};
};

TEST_F(StatusSocketTest, StatsAreAnswered) {
  Client client;
  client.Say("stats\n");
  EXPECT_EQ(client.Rest().rfind("{\"format\": 1, \"loaded\": false", 0), 0u);
}

TEST_F(StatusSocketTest, WhatIsNoRequestGetsNoAnswer) {
  for (const std::string request : {"\n", "nonsense\n", "trac 1\n", "stats stats\n"}) {
    Client client;
    client.Say(request);
    EXPECT_EQ(client.Rest(), "") << request;
  }
  Client endless;
  endless.Say(std::string(1000, 'x'));
  EXPECT_EQ(endless.Rest(), "");
}

TEST_F(StatusSocketTest, ATraceLastsAsLongAsItsAskerWants) {
  Client client, other;
  client.Say("trace 100\n");
  EXPECT_EQ(client.Line(), "{\"tracing\": true}");
  EXPECT_TRUE(Trace::On());
  other.Say("trace 100\n");
  EXPECT_NE(other.Rest().find("\"error\": \"another client is recording a timeline\""),
            std::string::npos);
  Client asks;  // meanwhile
  asks.Say("stats\n");
  EXPECT_NE(asks.Rest(), "");
  EXPECT_TRUE(Trace::On());
  client.SayNoMore();
  EXPECT_NE(client.Rest().find("\"events\": []"), std::string::npos);
  EXPECT_FALSE(Trace::On());
}

TEST_F(StatusSocketTest, ATraceEndsWithItsAsker) {
  {
    Client client;
    client.Say("trace 100\n");
    client.Line();
    EXPECT_TRUE(Trace::On());
  }
  EXPECT_TRUE(testing::Eventually([] { return !Trace::On(); }));
  {
    Client client;
    client.Say("trace 100\n");
    client.Line();
    socket_.Stop();
    EXPECT_FALSE(Trace::On());
  }
}

TEST_F(StatusSocketTest, WhoSaysNothingKeepsNobodyWaitingForLong) {
  Client silent, client;
  client.Say("stats\n");
  EXPECT_NE(client.Rest(), "");
}

}  // namespace
}  // namespace rdma_transport
