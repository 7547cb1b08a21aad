#include "protocol/wire.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "protocol/bootstrap.h"
#include "protocol/tensor_bytes.h"

namespace rdma_transport {
namespace {

std::string Frame(MessageType type, const std::vector<int64_t>& dims, const std::string& key,
                  const std::string& payload) {
  TensorHeader header = {};
  header.type = type;
  header.step = -5;
  header.bytes = payload.size();
  const TensorFrame frame(&header, dims.data(), static_cast<int>(dims.size()), key, payload.data(),
                          payload.size());
  std::string bytes;
  for (int i = 0; i < frame.count(); ++i) {
    bytes.append(static_cast<const char*>(frame.parts()[i].iov_base), frame.parts()[i].iov_len);
  }
  return bytes;
}

TEST(Wire, ATensorSurvivesTheTrip) {
  const std::string bytes = Frame(MessageType::kInline, {3, 0, 7}, "a;key", "payload");
  TensorMessage message;
  ASSERT_TRUE(ParseTensor(bytes.data(), bytes.size(), &message).ok());
  EXPECT_EQ(message.header.step, -5);
  EXPECT_EQ(message.dims, (std::vector<int64_t>{3, 0, 7}));
  EXPECT_EQ(message.key, "a;key");
  EXPECT_EQ(std::string(message.payload, message.header.bytes), "payload");
}

TEST(Wire, ACallSurvivesTheTripAndNoTruncationIsACall) {
  CallMessage sent = {};
  sent.type = MessageType::kReply;
  sent.result = CallResult::kFailed;
  sent.number = 7;
  const CallFrame frame(sent, "the error");
  std::string bytes;
  for (int i = 0; i < frame.count(); ++i) {
    bytes.append(static_cast<const char*>(frame.parts()[i].iov_base), frame.parts()[i].iov_len);
  }
  CallMessage message;
  std::string_view body;
  ASSERT_TRUE(ParseCall(bytes.data(), bytes.size(), &message, &body).ok());
  EXPECT_EQ(message.result, CallResult::kFailed);
  EXPECT_EQ(message.number, 7u);
  EXPECT_EQ(body, "the error");
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(ParseCall(bytes.data(), length, &message, &body).code(), Code::kDataLoss) << length;
  }
}

TEST(Wire, NoTruncationOrFlippedByteIsReadOutOfBounds) {
  const std::string good = Frame(MessageType::kInline, {2, 2}, "some key", std::string(40, 'x'));
  for (size_t length = 0; length < good.size(); ++length) {
    // A copy of that exact length, so that the sanitizer sees any read beyond.
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<long>(length));
    TensorMessage message;
    EXPECT_FALSE(ParseTensor(cut.data(), cut.size(), &message).ok());
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<char> bytes(good.begin(), good.end());
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    TensorMessage message;
    if (!ParseTensor(bytes.data(), bytes.size(), &message).ok()) continue;
    for (int64_t dim : message.dims) ASSERT_GE(dim, 0);
    if (message.header.type == MessageType::kInline) {
      ASSERT_LE(message.payload + message.header.bytes, bytes.data() + bytes.size());
    }
  }
}

TEST(Bootstrap, SurvivesTheTripAndRefusesNonsense) {
  BootstrapRequest request;
  request.version = 9;
  request.from = {"/job:a/replica:0/task:3", 0x1234567890abcdef};
  request.channel = std::string("with\0null", 9);
  request.link = "a link";
  request.insist = true;
  const std::string good = request.Encode();
  BootstrapRequest back;
  ASSERT_TRUE(BootstrapRequest::Decode(good, &back).ok());
  EXPECT_EQ(back.from.incarnation, request.from.incarnation);
  EXPECT_EQ(back.channel, request.channel);
  EXPECT_EQ(back.link, request.link);
  EXPECT_TRUE(back.insist);
  // Tasks of earlier versions end their requests there: without secrets, and without shared links.
  const size_t unshared = good.size() - 3 * sizeof(uint32_t) - request.link.size() - 1;
  const size_t unsigned_ones = unshared - 2 * sizeof(uint32_t);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(BootstrapRequest::Decode(good.substr(0, length), &back).ok(),
              length == unshared || length == unsigned_ones)
        << length;
  }
  // Fields of a later version are passed over.
  EXPECT_TRUE(BootstrapRequest::Decode(good + "more", &back).ok());
}

TEST(Wire, ATensorHasTheBytesOfItsShapeAlsoWhereAProductWouldWrap) {
  EXPECT_TRUE(HasBytes({}, 4, 4));
  EXPECT_TRUE(HasBytes({2, 3}, 4, 24));
  EXPECT_FALSE(HasBytes({2, 3}, 4, 28));
  EXPECT_TRUE(HasBytes({3, 0, int64_t{1} << 62, 8}, 4, 0));
  EXPECT_FALSE(HasBytes({3, -1}, 4, 0));
  // 2^62 + 1024 elements of 4 bytes are 4096 bytes modulo 2^64.
  EXPECT_FALSE(HasBytes({(int64_t{1} << 62) + 1024}, 4, 4096));
  EXPECT_FALSE(HasBytes({int64_t{1} << 32, int64_t{1} << 32}, 1, 0));
}

TEST(Wire, AStaticTensorsPartsHaveTheLengthsThatItStates) {
  StaticMessage message = {};
  message.type = MessageType::kStatic;
  const StaticChecksum sum = {0x12345678, 0};
  const auto parse = [&](const std::string& behind, std::string_view* suffix, uint32_t* checksum) {
    std::string bytes(reinterpret_cast<const char*>(&message), sizeof(message));
    bytes += behind;
    StaticMessage parsed;
    return ParseStatic(bytes.data(), bytes.size(), &parsed, suffix, checksum).ok();
  };
  const std::string checked(reinterpret_cast<const char*>(&sum), sizeof(sum));
  std::string_view suffix;
  uint32_t checksum = 0;
  EXPECT_TRUE(parse("", &suffix, &checksum));
  EXPECT_EQ(suffix, kUsualSuffix);
  EXPECT_FALSE(parse(checked, &suffix, &checksum));
  message.flags = kChecked;
  EXPECT_FALSE(parse("", &suffix, &checksum));
  EXPECT_TRUE(parse(checked, &suffix, &checksum));
  EXPECT_EQ(checksum, 0x12345678u);
  message.flags = kChecked | kOwnSuffix;
  message.suffix_length = 5;
  EXPECT_FALSE(parse(std::string(";f:12") + checked, &suffix, &checksum));  // not padded
  checksum = 0;
  EXPECT_TRUE(parse(std::string(";f:12\0\0\0", 8) + checked, &suffix, &checksum));
  EXPECT_EQ(checksum, 0x12345678u);
}

}  // namespace
}  // namespace rdma_transport
