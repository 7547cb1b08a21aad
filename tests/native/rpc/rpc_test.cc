// Calls between two runtimes, as if they were two processes.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "protocol/trace.h"
#include "rpc/rpc_client.h"
#include "rpc/rpc_server.h"
#include "rpc/wire.h"
#include "task.h"

namespace rdma_transport::rpc {
namespace {

using rdma_transport::testing::Eventually;
using rdma_transport::testing::Task;
using rdma_transport::testing::TestSettings;
using Bytes = rdma_transport::testing::Payload;

const std::atomic<bool> kNotCancelled{false};

Context ContextOf(Task& task) {
  Runtime& runtime = task.runtime();
  return {task.endpoint().identity().task,
          "reply",
          runtime.device(),
          runtime.arena(),
          runtime.receive_arena(),
          &runtime.settings(),
          runtime.secret_file()};
}

// Replies with as many bytes as each number in the request says.
Reply SizesInRequest(std::string_view request) {
  Reply reply;
  reply.head = "head of " + std::string(request);
  auto bytes = std::make_unique<std::vector<std::unique_ptr<Bytes>>>();
  std::string number;
  for (const char c : std::string(request) + ",") {
    if (c != ',') {
      number += c;
      continue;
    }
    const size_t size = std::stoul(number);
    bytes->push_back(std::make_unique<Bytes>(size, static_cast<int>(bytes->size())));
    reply.payloads.push_back({bytes->back()->data(), size});
    number.clear();
  }
  reply.owner = OwnerRef::Holding(std::move(bytes));
  return reply;
}

class RpcTest : public ::testing::Test {
 protected:
  void Serve(Handler handler) {
    server_ = std::make_unique<RpcServer>(ContextOf(worker_), std::move(handler));
    ASSERT_TRUE(server_->Start(0).ok());
  }
  std::string address() const { return "localhost:" + std::to_string(server_->port()); }
  Status Connect() {
    return RpcClient::Connect(ContextOf(reader_), address(), Now() + 5 * kSecond, &kNotCancelled,
                              &client_);
  }
  void TearDown() override {
    const std::weak_ptr<RpcClient> client = client_;
    if (client_ != nullptr) client_->Leave();
    if (server_ != nullptr) server_->Stop();
    client_.reset();
    // One whose call was cancelled stays until the server's last word, which must be polled.
    EXPECT_TRUE(testing::Eventually([&] { return client.expired(); }));
  }

  Task worker_{"worker"}, reader_{"client"};
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<RpcClient> client_;
};

TEST_F(RpcTest, EverySizeArrivesAgainAndAgain) {
  Serve(&SizesInRequest);
  ASSERT_EQ(Connect().message(), "");
  const std::vector<size_t> sizes = {0, 1, 4096, 4097, 100000, 9000000};
  for (const char* request : {"0,1,4096,4097,100000,9000000", "0,1,4096,4097,100000,9000000",
                              "9000000,100000,4097,4096,1,0", "5000", "0"}) {
    Response response = client_->Call(request);
    ASSERT_TRUE(response.status.ok()) << response.status.message();
    EXPECT_EQ(response.head, std::string("head of ") + request);
    for (size_t i = 0; i < response.payloads.size(); ++i) {
      const Arrived& arrived = response.payloads[i];
      EXPECT_TRUE(Bytes::Matches(arrived.data, arrived.bytes, static_cast<int>(i)));
      EXPECT_EQ(arrived.place != 0, arrived.bytes > 4096) << arrived.bytes;
      if (arrived.place != 0) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(arrived.data) % 64, 0u);
      }
    }
  }
}

TEST_F(RpcTest, WithoutReceiveBuffersBytesTravelInTheText) {
  Settings settings = TestSettings();
  settings.arena_size = 0x200000;
  Task poor("poor", settings);
  Serve(&SizesInRequest);
  ASSERT_TRUE(
      RpcClient::Connect(ContextOf(poor), address(), Now() + 5 * kSecond, &kNotCancelled, &client_)
          .ok());
  Response response = client_->Call("5000000,100");
  ASSERT_TRUE(response.status.ok()) << response.status.message();
  EXPECT_EQ(response.payloads[0].place, 0u);
  EXPECT_TRUE(Bytes::Matches(response.payloads[0].data, 5000000, 0));
  EXPECT_TRUE(Bytes::Matches(response.payloads[1].data, 100, 1));
  client_->Leave();
  client_ = nullptr;
}

TEST_F(RpcTest, ErrorsPassWithCodeAndMessage) {
  Serve([](std::string_view) {
    Reply reply;
    reply.status = Status(static_cast<Code>(11), "out of range");
    return reply;
  });
  ASSERT_EQ(Connect().message(), "");
  const Response response = client_->Call("x");
  EXPECT_EQ(static_cast<int>(response.status.code()), 11);
  EXPECT_EQ(response.status.message(), "out of range");
}

TEST_F(RpcTest, ManyCallsAtOnce) {
  Serve(&SizesInRequest);
  ASSERT_EQ(Connect().message(), "");
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const size_t size = 1000 * (t + 1) * (i + 1);
        Response response = client_->Call(std::to_string(size));
        if (response.status.ok() && response.payloads[0].bytes == size &&
            Bytes::Matches(response.payloads[0].data, size, 0)) {
          ++right;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 160);
}

TEST_F(RpcTest, CancelEndsACallWithoutAReply) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  Serve([gone](std::string_view request) {
    gone.wait();
    return SizesInRequest(request);
  });
  ASSERT_EQ(Connect().message(), "");
  auto call = std::async(std::launch::async, [this] { return client_->Call("100000").status; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  client_->Cancel();
  ASSERT_EQ(call.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(call.get().code(), Code::kCancelled);
  EXPECT_EQ(client_->Call("1").status.code(), Code::kCancelled);
  go.set_value();
}

TEST_F(RpcTest, TheEndOfTheWorkerIsUnavailable) {
  std::atomic<bool> begun{false};
  Serve([&begun](std::string_view request) {
    begun.store(true);
    std::this_thread::sleep_for(std::chrono::seconds(1));  // until the worker stops
    return SizesInRequest(request);
  });
  ASSERT_EQ(Connect().message(), "");
  auto call = std::async(std::launch::async, [this] { return client_->Call("100000").status; });
  EXPECT_TRUE(Eventually([&] { return begun.load(); }));
  server_->Stop();
  ASSERT_EQ(call.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(call.get().code(), Code::kUnavailable);
  EXPECT_TRUE(client_->lost());
  EXPECT_EQ(Connect().code(), Code::kUnavailable);
}

TEST_F(RpcTest, ASilentWorkerIsUnavailable) {
  if (rdma_transport::testing::OnCard()) GTEST_SKIP() << "its end would not be heard here";
  Settings settings = TestSettings();
  settings.peer_timeout = kSecond;
  Task hasty("hasty", settings);
  Serve(&SizesInRequest);
  std::shared_ptr<RpcClient> client;
  ASSERT_TRUE(
      RpcClient::Connect(ContextOf(hasty), address(), Now() + 5 * kSecond, &kNotCancelled, &client)
          .ok());
  ASSERT_TRUE(client->Call("1").status.ok());
  worker_.Stop();
  EXPECT_EQ(client->Call("1").status.code(), Code::kUnavailable);
  EXPECT_FALSE(client->lost());
  server_->Stop();
  EXPECT_TRUE(Eventually([&] { return client->lost(); }));
  client->Leave();
  // What the worker may still write into is kept until its process ends, which it does not here.
  client->OnReleased();
}

// --- The listener ---

// What comes back for `bytes` on a plain connection, until it is closed.
std::string Say(int port, const std::string& bytes) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
  std::string heard;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(socket, buffer, sizeof(buffer), 0)) > 0) {
    heard.append(buffer, static_cast<size_t>(got));
  }
  close(socket);
  return heard;
}

TEST_F(RpcTest, MalformedRequestsAreRefusedAndDelayNoClient) {
  Serve(&SizesInRequest);
  EXPECT_EQ(Say(server_->port(), std::string(8, '\xff')), "");
  EXPECT_EQ(Say(server_->port(), std::string("\4\0\0\0abcdef", 10)), "");
  EXPECT_NE(Say(server_->port(), std::string("\4\0\0\0abcd", 8)).find("not a bootstrap"),
            std::string::npos);
  const int idle = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(idle, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(Connect().message(), "");
  EXPECT_TRUE(client_->Call("1").status.ok());
  close(idle);
}

// The previous version is that of a reader that is not upgraded yet.
TEST_F(RpcTest, TheNextAndThePreviousVersionAreRefusedWithTheReason) {
  Serve(&SizesInRequest);
  for (const uint32_t version : {kVersion - 1, kVersion + 1}) {
    BootstrapRequest request;
    request.version = version;
    const std::string bytes = request.Encode();
    const std::string size = {static_cast<char>(bytes.size()), 0, 0, 0};
    const std::string reason = "it uses RPC version " + std::to_string(kVersion) +
                               ", this process version " + std::to_string(version);
    EXPECT_NE(Say(server_->port(), size + bytes).find(reason), std::string::npos);
  }
}

TEST_F(RpcTest, SilentConnectionsKeepNoClientOut) {
  Serve(&SizesInRequest);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<fabric::host::FileDescriptor> crowd;
  for (int i = 0; i < 200; ++i) {
    crowd.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(connect(crowd.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)),
              0);
  }
  // Well before the crowd's time is up.
  const Status connected = RpcClient::Connect(ContextOf(reader_), this->address(),
                                              Now() + 3 * kSecond, &kNotCancelled, &client_);
  EXPECT_EQ(connected.message(), "");
}

TEST_F(RpcTest, WithoutDescriptorsConnectedClientsAreServedAndOthersWait) {
  Serve(&SizesInRequest);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const auto* where = reinterpret_cast<sockaddr*>(&address);
  const fabric::host::FileDescriptor here(::socket(AF_INET, SOCK_STREAM, 0));
  const fabric::host::FileDescriptor late(::socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect(here.get(), where, sizeof(address)), 0);
  const std::string garbage("\4\0\0\0abcd", 8);
  ASSERT_EQ(send(here.get(), garbage.data(), 2, MSG_NOSIGNAL), 2);
  // Whoever came later was heard, so this one is accepted.
  EXPECT_NE(Say(server_->port(), garbage), "");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = dup(here.get());  // of those that are free
  close(lowest);
  const rlimit none = {static_cast<rlim_t>(lowest), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_EQ(connect(late.get(), where, sizeof(address)), 0);
  EXPECT_EQ(send(here.get(), garbage.data() + 2, 6, MSG_NOSIGNAL), 6);
  const auto answered = [](int socket) {
    char byte = 0;
    return Eventually([&] { return recv(socket, &byte, 1, MSG_DONTWAIT) == 1; });
  };
  EXPECT_TRUE(answered(here.get()));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(send(late.get(), garbage.data(), 8, MSG_NOSIGNAL), 8);
  EXPECT_TRUE(answered(late.get()));
}

TEST_F(RpcTest, ANewClientReplacesAnIdleOne) {
  std::atomic<bool> came{false};
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  server_ = std::make_unique<RpcServer>(
      ContextOf(worker_),
      [gone, &came](std::string_view request) {
        if (request == "1") {
          came = true;
          gone.wait();
        }
        return SizesInRequest(request);
      },
      /*most_sessions=*/2);
  ASSERT_TRUE(server_->Start(0).ok());
  ASSERT_EQ(Connect().message(), "");
  const std::shared_ptr<RpcClient> idle = client_;
  ASSERT_EQ(Connect().message(), "");
  const std::shared_ptr<RpcClient> busy = client_;
  auto call = std::async(std::launch::async, [&] { return busy->Call("1").status; });
  EXPECT_TRUE(idle->Call("2").status.ok());
  EXPECT_TRUE(Eventually([&] { return came.load(); }));
  // The server may count the call a moment longer than its client does.
  const bool replaced = Eventually([&] { return Connect().ok(); });
  if (!replaced) go.set_value();
  ASSERT_TRUE(replaced);
  EXPECT_TRUE(Eventually([&] { return idle->lost(); }));
  EXPECT_TRUE(client_->Call("3").status.ok());
  go.set_value();
  EXPECT_TRUE(call.get().ok());
  idle->Leave();
  busy->Leave();
}

TEST_F(RpcTest, BothSidesOfACallAreInATimeline) {
  Serve(&SizesInRequest);
  ASSERT_EQ(Connect().message(), "");
  ASSERT_TRUE(client_->Call("100000").status.ok());  // before it
  ASSERT_TRUE(Trace::Start(100).ok());
  ASSERT_TRUE(client_->Call("100000,7").status.ok());
  ASSERT_TRUE(client_->Call("7").status.ok());
  server_->Stop();  // what sent a reply has written that down
  const std::string json = Trace::StopJson();
  EXPECT_NE(json.find(R"({"local": "worker", "remote": "client"})"), std::string::npos) << json;
  EXPECT_NE(json.find(R"({"local": "client", "remote": "worker"})"), std::string::npos) << json;
  EXPECT_NE(json.find(R"("keys": ["reply")"), std::string::npos) << json;
  const auto count = [&json](const std::string& text) {
    size_t found = 0;
    for (size_t at = 0; (at = json.find(text, at)) != std::string::npos; at += text.size()) ++found;
    return found;
  };
  EXPECT_EQ(count(R"(, 100007, "dynamic", )"), 2u) << json;
  EXPECT_EQ(count(R"(, 7, "inline", )"), 2u) << json;
  EXPECT_EQ(count("[0, "), 2u) << json;
  EXPECT_EQ(count("[2, "), 2u) << json;
  EXPECT_EQ(count("[3, "), 2u) << json;
}

// --- The wire ---

TEST(RpcWireTest, NoCutOrChangedReplyIsReadBeyondItsEnd) {
  Reply reply;
  reply.head = "head";
  const std::string bytes(100, 'b');
  reply.payloads = {{bytes.data(), bytes.size()}, {bytes.data(), bytes.size()}};
  const std::string text = EncodeReply(reply, {0, 1});
  Response response;
  ASSERT_TRUE(DecodeReply(text, &response).ok());
  EXPECT_EQ(std::string(response.payloads[0].data, 100), bytes);
  EXPECT_EQ(response.payloads[1].place, 1u);
  for (size_t length = 0; length < text.size(); ++length) {
    Response cut;
    EXPECT_FALSE(DecodeReply(text.substr(0, length), &cut).ok()) << length;
  }
  for (size_t i = 0; i < 16 + 2 * 16; ++i) {
    for (const char value : {'\x01', '\x7f', '\xff'}) {
      std::string changed = text;
      changed[i] = value;
      Response any;
      DecodeReply(changed, &any).IgnoreError();
    }
  }
}

TEST(RpcWireTest, NoCutNotificationIsAccepted) {
  Header header = {};
  header.type = Type::kRequest;
  header.count = 2;
  header.length = 3;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes += std::string(2 * sizeof(Place), 'p') + "abc";
  Message message;
  ASSERT_TRUE(Parse(bytes.data(), bytes.size(), &message).ok());
  EXPECT_EQ(message.bytes, "abc");
  for (size_t length = 0; length < bytes.size(); ++length) {
    Message cut;
    EXPECT_FALSE(Parse(bytes.data(), length, &cut).ok()) << length;
  }
}

}  // namespace
}  // namespace rdma_transport::rpc
