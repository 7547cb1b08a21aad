// The bootstrap with a secret: what is accepted, and that nothing else is.
#include "protocol/handshake.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "protocol_fixture.h"

namespace rdma_transport {
namespace {

using testing::Catcher;
using testing::CountingGrpc;
using testing::Eventually;
using testing::Task;
using testing::Tensor;

const std::string kOne = "0123456789abcdef0123456789abcdef-one";
const std::string kTwo = "0123456789abcdef0123456789abcdef-two";

// A file that goes at the end.
class File {
 public:
  explicit File(const std::string& text, mode_t mode = 0600) {
    path_ = ::testing::TempDir() + "secret.XXXXXX";
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    close(fd);
    Write(text, mode);
  }
  ~File() { std::remove(path_.c_str()); }
  // As a careful writer does it: a new file takes the place of the old one.
  void Write(const std::string& text, mode_t mode = 0600) {
    const std::string made = path_ + ".new";
    std::ofstream(made) << text;
    EXPECT_EQ(chmod(made.c_str(), mode), 0);
    EXPECT_EQ(std::rename(made.c_str(), path_.c_str()), 0);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// --- The file ---

class SecretFileTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { SetLogLevel(LogLevel::kOff); }
  static std::vector<std::string> Read(const File& file) {
    std::vector<std::string> secrets;
    std::string warning;
    EXPECT_EQ(ReadSecrets(file.path(), &secrets, &warning).message(), "");
    return secrets;
  }
  static void ExpectRefused(const std::string& path, const std::string& why) {
    std::vector<std::string> secrets;
    std::string warning;
    const Status status = ReadSecrets(path, &secrets, &warning);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("RDMA_TRANSPORT_SECRET_FILE=" + path), std::string::npos);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find(kOne.substr(0, 8)), std::string::npos) << status.message();
  }
};

TEST_F(SecretFileTest, EachLineIsASecret) {
  EXPECT_EQ(Read(File(kOne)), std::vector<std::string>{kOne});
  EXPECT_EQ(Read(File(kOne + "\n")), std::vector<std::string>{kOne});
  EXPECT_EQ(Read(File("\n  " + kOne + " \r\n\n\t" + kTwo + "\n\n")),
            (std::vector<std::string>{kOne, kTwo}));
}

TEST_F(SecretFileTest, WhatCannotBeUsedIsAnErrorThatShowsNothingOfIt) {
  ExpectRefused("/nonexistent/secret", "No such file or directory");
  ExpectRefused("/dev/null", "not a regular file");
  ExpectRefused(::testing::TempDir(), "not a regular file");
  const File empty(" \n\n");
  ExpectRefused(empty.path(), "it is empty. Make a secret with: openssl rand -hex 32");
  const File short_one(kTwo + "\n" + kOne.substr(0, 31) + "\n");
  ExpectRefused(short_one.path(), "line 2 has fewer than 32 characters");
  const File large(std::string(5000, 's'));
  ExpectRefused(large.path(), "more than 4096 bytes");
  for (const mode_t mode : {0604, 0602, 0620, 0666, 0644}) {
    const File open(kOne, mode);
    ExpectRefused(open.path(), "chmod 600 " + open.path());
  }
}

TEST_F(SecretFileTest, APipeBlocksNobody) {
  const std::string path = File(kOne).path();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  ExpectRefused(path, "not a regular file");
  std::remove(path.c_str());
}

TEST_F(SecretFileTest, AFileThatItsGroupCanReadIsAWarning) {
  const File file(kOne, 0640);
  std::vector<std::string> secrets;
  std::string warning;
  EXPECT_TRUE(ReadSecrets(file.path(), &secrets, &warning).ok());
  EXPECT_NE(warning.find("its group can read it"), std::string::npos);
}

TEST_F(SecretFileTest, AChangedFileIsReadAgainAndABadOneChangesNothing) {
  File file(kOne);
  SecretFile secret(file.path());
  std::vector<std::string> secrets;
  ASSERT_TRUE(secret.Get(&secrets).ok());
  EXPECT_EQ(secrets, std::vector<std::string>{kOne});
  file.Write(kTwo + "\n" + kOne);
  ASSERT_TRUE(secret.Get(&secrets).ok());
  EXPECT_EQ(secrets, (std::vector<std::string>{kTwo, kOne}));
  for (const char* bad : {"", "too short"}) {
    file.Write(bad);
    ASSERT_TRUE(secret.Get(&secrets).ok());
    EXPECT_EQ(secrets.size(), 2u);
  }
  std::remove(file.path().c_str());
  ASSERT_TRUE(secret.Get(&secrets).ok());
  EXPECT_EQ(secrets.size(), 2u);
  file.Write(kOne);
  ASSERT_TRUE(secret.Get(&secrets).ok());
  EXPECT_EQ(secrets, std::vector<std::string>{kOne});
}

TEST_F(SecretFileTest, WithoutAFileThereIsNoSecretAndABadOneIsNotNone) {
  std::vector<std::string> secrets;
  EXPECT_TRUE(SecretFile("").Get(&secrets).ok());
  EXPECT_TRUE(secrets.empty());
  SecretFile missing("/nonexistent/secret");
  EXPECT_FALSE(missing.Get(&secrets).ok());
  EXPECT_FALSE(missing.Get(&secrets).ok());
}

// --- The two messages ---

// One bootstrap between two files, each message as the other side decodes it.
struct Round {
  explicit Round(const std::string& asking, const std::string& answering,
                 std::string_view asking_service = kTaskService)
      : asking_file(asking),
        answering_file(answering),
        asks(&asking_file, asking_service),
        answers(&answering_file, kTaskService) {
    request.version = 7;
    request.from = {"/job:a/task:0", 11};
    request.channel = "channel of a";
    reply.version = 7;
    reply.from = {"/job:b/task:0", 22};
    reply.channel = "channel of b";
  }
  Status Ask() {
    RDMA_RETURN_IF_ERROR(asks.Sign(&request));
    return BootstrapRequest::Decode(request.Encode(), &request);
  }
  Status Answer() {
    answers.Sign(&reply);
    return BootstrapReply::Decode(reply.Encode(), &reply);
  }
  Status All() {
    RDMA_RETURN_IF_ERROR(Ask());
    RDMA_RETURN_IF_ERROR(answers.Check(request));
    RDMA_RETURN_IF_ERROR(Answer());
    return asks.Check(reply);
  }

  SecretFile asking_file, answering_file;
  AskingHandshake asks;
  AnsweringHandshake answers;
  BootstrapRequest request;
  BootstrapReply reply;
};

class HandshakeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { SetLogLevel(LogLevel::kOff); }
  static void ExpectDenied(const Status& status, const std::string& why) {
    EXPECT_EQ(status.code(), Code::kPermissionDenied);
    EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
  }

  const File one_{kOne}, two_{kTwo}, one_two_{kOne + "\n" + kTwo}, two_one_{kTwo + "\n" + kOne};
};

TEST_F(HandshakeTest, WithTheSameSecretBothHaveTheSameKeyAndItIsFresh) {
  Round first(one_.path(), one_.path());
  ASSERT_EQ(first.All().message(), "");
  EXPECT_EQ(first.asks.channel_key().size(), 32u);
  EXPECT_EQ(first.asks.channel_key(), first.answers.channel_key());
  Round second(one_.path(), one_.path());
  ASSERT_TRUE(second.All().ok());
  EXPECT_NE(first.asks.channel_key(), second.asks.channel_key());
  EXPECT_EQ(first.request.Encode().find(kOne), std::string::npos);
  EXPECT_EQ(first.reply.Encode().find(kOne), std::string::npos);
}

TEST_F(HandshakeTest, WithoutASecretNothingIsAdded) {
  Round round("", "");
  ASSERT_TRUE(round.All().ok());
  EXPECT_EQ(round.request.nonce + round.request.mac, "");
  EXPECT_EQ(round.reply.nonce + round.reply.mac, "");
  EXPECT_EQ(round.asks.channel_key() + round.answers.channel_key(), "");
}

TEST_F(HandshakeTest, EitherOfTwoSecretsIsAccepted) {
  // From one to two, file by file: each pair that there is on the way.
  const File* const pairs[][2] = {{&one_, &one_two_},     {&one_two_, &one_},
                                  {&one_two_, &two_one_}, {&two_one_, &one_two_},
                                  {&two_one_, &two_},     {&two_, &two_one_}};
  for (const auto& pair : pairs) {
    Round round(pair[0]->path(), pair[1]->path());
    ASSERT_EQ(round.All().message(), "");
    EXPECT_EQ(round.asks.channel_key(), round.answers.channel_key());
  }
}

TEST_F(HandshakeTest, AnotherSecretOrNoneIsDeniedAndSaysWhichSideHasNone) {
  ExpectDenied(Round(one_.path(), two_.path()).All(), "its secret differs");
  ExpectDenied(Round(one_.path(), "").All(), "it has no secret: set RDMA_TRANSPORT_SECRET_FILE");
  ExpectDenied(Round("", one_.path()).All(), "it has a secret, and this task has none");
  ExpectDenied(Round(one_.path(), "/nonexistent").All(), "it cannot read its own secret");
  EXPECT_EQ(Round("/nonexistent", one_.path()).All().code(), Code::kInvalidArgument);
  // One that begins alike is another one.
  const File longer(kOne + "x");
  ExpectDenied(Round(one_.path(), longer.path()).All(), "its secret differs");
}

TEST_F(HandshakeTest, EachFieldOfARequestIsCoveredAndEachRefusalIsTheSame) {
  const std::vector<std::function<void(BootstrapRequest*)>> changes = {
      [](auto* r) { ++r->version; },
      [](auto* r) { r->from.task += "0"; },
      [](auto* r) { ++r->from.incarnation; },
      [](auto* r) { r->channel[0] ^= 1; },
      [](auto* r) { r->channel.pop_back(); },
      [](auto* r) { r->nonce[0] ^= 1; },
      [](auto* r) { r->nonce.clear(); },
      [](auto* r) { r->mac[31] ^= 1; },
      [](auto* r) { r->mac.pop_back(); },
      [](auto* r) { r->mac += '\0'; },
      // The same bytes, cut elsewhere.
      [](auto* r) {
        r->channel.insert(0, 1, r->from.task.back());
        r->from.task.pop_back();
      },
  };
  const std::string refusal = Round(one_.path(), two_.path()).All().message();
  for (size_t i = 0; i < changes.size(); ++i) {
    Round round(one_.path(), one_.path());
    ASSERT_TRUE(round.Ask().ok());
    changes[i](&round.request);
    const Status status = round.answers.Check(round.request);
    EXPECT_EQ(status.code(), Code::kPermissionDenied) << i;
    EXPECT_EQ(status.message(), refusal) << i;
    EXPECT_EQ(round.answers.channel_key(), "") << i;
  }
  Round stripped(one_.path(), one_.path());
  ASSERT_TRUE(stripped.Ask().ok());
  stripped.request.mac.clear();
  EXPECT_FALSE(stripped.answers.Check(stripped.request).ok());
}

TEST_F(HandshakeTest, EachFieldOfAReplyIsCovered) {
  const std::vector<std::function<void(BootstrapReply*)>> changes = {
      [](auto* r) { ++r->version; },
      [](auto* r) { r->from.task += "0"; },
      [](auto* r) { ++r->from.incarnation; },
      [](auto* r) { r->channel[0] ^= 1; },
      [](auto* r) { r->refusal = "x"; },
      [](auto* r) { r->again = !r->again; },
      [](auto* r) { r->nonce[0] ^= 1; },
      [](auto* r) { r->mac[0] ^= 1; },
      [](auto* r) { r->mac.clear(); },
      [](auto* r) {
        r->mac.clear();
        r->nonce.clear();
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    Round round(one_.path(), one_.path());
    ASSERT_TRUE(round.Ask().ok());
    ASSERT_TRUE(round.answers.Check(round.request).ok());
    ASSERT_TRUE(round.Answer().ok());
    changes[i](&round.reply);
    ExpectDenied(round.asks.Check(round.reply), "does not prove");
    EXPECT_EQ(round.asks.channel_key(), "") << i;
  }
}

TEST_F(HandshakeTest, AnotherBootstrapsReplyIsDenied) {
  Round earlier(one_.path(), one_.path());
  ASSERT_TRUE(earlier.All().ok());
  Round now(one_.path(), one_.path());
  ASSERT_TRUE(now.Ask().ok());
  ExpectDenied(now.asks.Check(earlier.reply), "does not prove");
}

TEST_F(HandshakeTest, ARepeatedRequestGetsAKeyThatTheRepeaterCannotMake) {
  Round true_one(one_.path(), one_.path());
  ASSERT_TRUE(true_one.All().ok());
  AnsweringHandshake again(&true_one.answering_file, kTaskService);
  ASSERT_TRUE(again.Check(true_one.request).ok());
  EXPECT_NE(again.channel_key(), true_one.answers.channel_key());
  EXPECT_NE(again.channel_key(), true_one.asks.channel_key());
}

TEST_F(HandshakeTest, AMessageThatIsSentBackIsDenied) {
  Round round(one_.path(), one_.path());
  ASSERT_TRUE(round.Ask().ok());
  // A request as a reply to itself, with the fields that both have.
  BootstrapReply reflected;
  reflected.version = round.request.version;
  reflected.from = round.request.from;
  reflected.channel = round.request.channel;
  reflected.nonce = round.request.nonce;
  reflected.mac = round.request.mac;
  ExpectDenied(round.asks.Check(reflected), "does not prove");
  // And a reply as a request.
  ASSERT_TRUE(round.answers.Check(round.request).ok());
  ASSERT_TRUE(round.Answer().ok());
  BootstrapRequest back;
  back.version = round.reply.version;
  back.from = round.reply.from;
  back.channel = round.reply.channel;
  back.nonce = round.reply.nonce;
  back.mac = round.reply.mac;
  AnsweringHandshake other(&round.asking_file, kTaskService);
  EXPECT_FALSE(other.Check(back).ok());
}

TEST_F(HandshakeTest, AMessageForOneServiceIsNoneForAnother) {
  ExpectDenied(Round(one_.path(), one_.path(), "rpc").All(), "its secret differs");
}

// --- Tasks ---

class SecretTaskTest : public testing::ProtocolTest {
 protected:
  static Settings With(const std::string& path, bool fallback = true) {
    Settings settings = testing::TestSettings();
    settings.secret_file = path;
    settings.allow_fallback = fallback;
    return settings;
  }
  // Sends one tensor and receives it; the path of the link, or "grpc".
  std::string PathOf(Task& from, Task& to, int64_t step) {
    const std::vector<int64_t> dims = {9000};
    EXPECT_TRUE(Send(from, to, Tensor(step, "k", Bytes(9000, 1, &from.arena()), dims)).ok());
    auto catcher = Receive(to, from, step, "k");
    if (catcher->grpc_asks() == 0) {
      EXPECT_TRUE(catcher->Get().status.ok());
    } else {
      catcher->Claim();
    }
    return Stats(from, to).transport;
  }
  static PeerStats Stats(Task& from, Task& to) {
    for (const PeerStats& peer : from.endpoint().Stats()) {
      if (peer.task == to.endpoint().identity().task) return peer;
    }
    return {};
  }
  static std::string fabric() { return testing::FabricSettings().fabric; }

  const File one_{kOne}, two_{kTwo};
};

TEST_F(SecretTaskTest, WithTheSameSecretTheFabricIsUsed) {
  Task a("a", With(one_.path())), b("b", With(one_.path()));
  EXPECT_EQ(PathOf(a, b, 1), fabric());
  EXPECT_EQ(grpc_sends_.load(), 0);
}

TEST_F(SecretTaskTest, WithAnotherSecretGrpcIsUsedAndTheReasonCounted) {
  Task a("a", With(one_.path())), b("b", With(two_.path())), c("c", With(""));
  EXPECT_EQ(PathOf(a, b, 1), "grpc");
  EXPECT_NE(Stats(a, b).reason.find("its secret differs"), std::string::npos);
  EXPECT_EQ(PathOf(a, c, 1), "grpc");
  EXPECT_NE(Stats(a, c).reason.find("it has no secret"), std::string::npos);
  EXPECT_EQ(PathOf(c, a, 1), "grpc");
  EXPECT_NE(Stats(c, a).reason.find("this task has none"), std::string::npos);
  EXPECT_GT(GlobalCounters().errors.Get()["authentication"], 0u);
}

TEST_F(SecretTaskTest, WhereGrpcIsForbiddenAnotherSecretIsAnError) {
  Task a("a", With(one_.path(), false)), b("b", With(two_.path()));
  const std::vector<int64_t> dims = {10};
  auto waiting = Receive(a, b, 1, "w");
  const Delivery delivery = waiting->Get();
  EXPECT_EQ(delivery.status.code(), Code::kFailedPrecondition);
  EXPECT_NE(delivery.status.message().find("its secret differs"), std::string::npos);
  const Status sent = Send(a, b, Tensor(1, "k", Bytes(10, 1), dims));
  EXPECT_EQ(sent.code(), Code::kFailedPrecondition);
  EXPECT_NE(sent.message().find("FALLBACK=forbid"), std::string::npos);
}

TEST_F(SecretTaskTest, AFileThatIsPutRightWhileTheJobRunsBringsTheFabricBack) {
  File file(kTwo);
  Task a("a", With(one_.path())), b("b", With(file.path()));
  EXPECT_EQ(PathOf(a, b, 1), "grpc");
  file.Write(kTwo + "\n" + kOne);
  int64_t step = 1;
  EXPECT_TRUE(Eventually([&] { return PathOf(a, b, ++step) == fabric(); }));
}

TEST_F(SecretTaskTest, AnAnswerThatSomebodyElseGivesIsNotTaken) {
  Task a("a", With(one_.path())), b("b", With(""));
  // Between them is one that takes the signature off, so that b answers.
  const BootstrapCall stripped = [&b](const std::string& bytes, Nanos, const auto& done) {
    BootstrapRequest request;
    EXPECT_TRUE(BootstrapRequest::Decode(bytes, &request).ok());
    request.nonce.clear();
    request.mac.clear();
    done(OkStatus(), b.endpoint().HandleBootstrap(request.Encode()));
  };
  CountingGrpc fallback(&grpc_sends_);
  const std::vector<int64_t> dims = {10};
  ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(10, 1), dims), stripped, &fallback).ok());
  EXPECT_EQ(grpc_sends_.load(), 1);
  EXPECT_NE(Stats(a, b).reason.find("does not prove"), std::string::npos);
}

// Somebody else confirms that a link is the peer's.
TEST_F(SecretTaskTest, AReplyThatOnlyNamesALinkNeedsTheSecretToo) {
  Task a("a", With(one_.path())), b("b", With(one_.path()));
  const std::vector<int64_t> dims = {10};
  ASSERT_TRUE(Send(b, a, Tensor(1, "k", Bytes(10, 1), dims)).ok());
  ASSERT_TRUE(Eventually([&] { return a.endpoint().links().UpTo("b").size() == 1; }));
  const BootstrapCall forged = [](const std::string& bytes, Nanos, const auto& done) {
    BootstrapRequest request;
    EXPECT_TRUE(BootstrapRequest::Decode(bytes, &request).ok());
    EXPECT_FALSE(request.offer.empty());
    BootstrapReply reply;
    reply.version = kProtocolVersion;
    reply.use = request.offer;
    reply.use_up = true;
    done(OkStatus(), reply.Encode());
  };
  CountingGrpc fallback(&grpc_sends_);
  ASSERT_TRUE(a.PeerTo(b)->Send(Tensor(1, "k", Bytes(10, 1), dims), forged, &fallback).ok());
  EXPECT_EQ(grpc_sends_.load(), 1);
  EXPECT_NE(Stats(a, b).reason.find("does not prove"), std::string::npos);
}

TEST_F(SecretTaskTest, ASecretThatCannotBeReadIsAnErrorAtTheStart) {
  Runtime runtime(With("/nonexistent/secret"));
  const Status status = runtime.Start();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("RDMA_TRANSPORT_SECRET_FILE=/nonexistent"), std::string::npos);
}

}  // namespace
}  // namespace rdma_transport
