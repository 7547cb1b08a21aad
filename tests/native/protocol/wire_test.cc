#include "protocol/wire.h"

#include <gtest/gtest.h>

#include "protocol/bootstrap.h"
#include "protocol/tensor_bytes.h"

namespace rdma_transport {
namespace {

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

}  // namespace
}  // namespace rdma_transport
