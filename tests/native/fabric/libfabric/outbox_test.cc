// The outgoing half of a channel's stream: what it refuses.

#include "fabric/libfabric/outbox.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fabric/host/parts.h"
#include "fabric/libfabric/domain.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint32_t kFrames = 8;
constexpr size_t kRoom = Domain::frame_bytes() - sizeof(MessageHeader);

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override { outbox_.Attach(kFrames); }

  Status Add(const std::string& text) {
    const iovec parts[] = {
        {const_cast<char*>(text.data()), text.size() / 2},
        {const_cast<char*>(text.data()) + text.size() / 2, text.size() - text.size() / 2}};
    const Status added = outbox_.Add(RecordKind::kNotification, parts, 2, number_ + 1, 0);
    if (added.ok()) ++number_;
    return added;
  }
  void Post() {
    while (outbox_.Front() != nullptr) outbox_.Pop();
  }

  Outbox outbox_;
  uint64_t number_ = 0;
};

TEST_F(OutboxTest, ARecordThatIsTooLongIsRefused) {
  EXPECT_EQ(Add(std::string(host::kLongestNotification + 1, 'x')).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Add(std::string(host::kLongestNotification, 'x')).ok());
}

TEST_F(OutboxTest, MessagesAreFilledAndNoLongerThanAFrame) {
  for (const size_t length : {kRoom - 100, size_t{60}, size_t{60}, 3 * kRoom, size_t{0}}) {
    ASSERT_TRUE(Add(std::string(length, 'x')).ok());
  }
  std::vector<size_t> messages;
  outbox_.Close();
  for (; outbox_.Front() != nullptr; outbox_.Pop()) {
    messages.push_back(outbox_.Front()->records.size());
    EXPECT_LE(messages.back(), kRoom);
  }
  EXPECT_EQ(messages.size(), 6u)
      << "one, one that is too short for the next, and four of the long one";
}

TEST_F(OutboxTest, AConfirmationOfWhatWasNotSentIsRefused) {
  ASSERT_TRUE(Add("x").ok());
  EXPECT_FALSE(outbox_.OnConfirmed(1)) << "the message is still open";
  outbox_.Close();
  EXPECT_TRUE(outbox_.OnConfirmed(0));
  EXPECT_FALSE(outbox_.OnConfirmed(2));
  EXPECT_FALSE(outbox_.OnConfirmed(~uint64_t{0}));
  Post();
  EXPECT_TRUE(outbox_.OnConfirmed(1));
  EXPECT_TRUE(outbox_.OnConfirmed(0)) << "it came late";
  EXPECT_EQ(outbox_.delivered(), 1u);
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
