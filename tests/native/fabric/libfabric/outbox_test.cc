// The outgoing half of a channel's stream: what it gives to an inbox comes out there as it was.

#include "fabric/libfabric/outbox.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "fabric/libfabric/domain.h"
#include "fabric/libfabric/inbox.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint32_t kFrames = 8;
constexpr size_t kRoom = Domain::frame_bytes() - sizeof(MessageHeader);

class OutboxTest : public ::testing::Test {
 protected:
  struct Message {
    std::string bytes;
    uint64_t after;
  };

  void SetUp() override { outbox_.Attach(kFrames); }

  Status Add(const std::string& text, uint64_t writes = 0) {
    const iovec parts[] = {
        {const_cast<char*>(text.data()), text.size() / 2},
        {const_cast<char*>(text.data()) + text.size() / 2, text.size() - text.size() / 2}};
    const Status added = outbox_.Add(RecordKind::kNotification, parts, 2, number_ + 1, writes);
    if (added.ok()) ++number_;
    return added;
  }
  void Post() {
    while (!outbox_.Front().empty()) {
      posted_.push_back({std::string(outbox_.Front()), outbox_.FrontAfter()});
      outbox_.Pop();
    }
  }
  // The peer reads what was posted, and confirms some of it.
  void Read(Inbox* inbox, bool confirm) {
    for (const Message& message : posted_) {
      MessageHeader header = {};
      header.sequence = inbox->read() + 1;
      EXPECT_TRUE(inbox
                      ->Take(header, message.bytes, 1,
                             [&](RecordKind, std::string_view record) {
                               read_.emplace_back(record);
                               return OkStatus();
                             })
                      .ok());
    }
    posted_.clear();
    if (confirm) {
      EXPECT_TRUE(outbox_.OnConfirmed(inbox->read()));
    }
  }

  Outbox outbox_;
  std::vector<Message> posted_;
  std::vector<std::string> read_;
  uint64_t number_ = 0;
};

TEST_F(OutboxTest, GathersRecordsUntilTheMessageIsClosed) {
  EXPECT_TRUE(outbox_.Idle());
  ASSERT_TRUE(Add("a", 1).ok());
  ASSERT_TRUE(Add("b", 3).ok());
  EXPECT_TRUE(outbox_.Front().empty());
  EXPECT_TRUE(outbox_.HasOpen());
  outbox_.Close();
  outbox_.Close();
  Post();
  ASSERT_EQ(posted_.size(), 1u);
  EXPECT_EQ(outbox_.last_posted(), 1u);
  EXPECT_EQ(outbox_.first_unconfirmed(), 1u);
  EXPECT_EQ(posted_[0].after, 3u);
  EXPECT_EQ(posted_[0].bytes.size(), 2 * (sizeof(RecordHeader) + 1));
  EXPECT_FALSE(outbox_.Idle());
  EXPECT_TRUE(outbox_.OnConfirmed(1));
  EXPECT_EQ(outbox_.delivered(), 2u);
  EXPECT_TRUE(outbox_.Idle());
}

// The messages that a record fills before its last one do not wait for its writes.
TEST_F(OutboxTest, ARecordThatSpansMessagesIsDeliveredWithItsLast) {
  ASSERT_TRUE(Add("small", 1).ok());
  ASSERT_TRUE(Add(std::string(2 * kRoom, 'x'), 2).ok());
  outbox_.Close();
  Post();
  ASSERT_EQ(posted_.size(), 3u);
  EXPECT_EQ(posted_[0].after, 1u);
  EXPECT_EQ(posted_[1].after, 0u);
  EXPECT_EQ(posted_[2].after, 2u);
  EXPECT_TRUE(outbox_.OnConfirmed(2));
  EXPECT_EQ(outbox_.delivered(), 1u);
  EXPECT_TRUE(outbox_.OnConfirmed(3));
  EXPECT_EQ(outbox_.delivered(), 2u);
}

TEST_F(OutboxTest, WhatThePeerDoesNotReadWaits) {
  const std::string text(kRoom - sizeof(RecordHeader), 'x');
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Add(text).ok());
  outbox_.Close();
  Post();
  EXPECT_EQ(posted_.size(), kFrames);
  EXPECT_TRUE(outbox_.WantsConfirmation());
  EXPECT_EQ(outbox_.backlog().used_bytes, outbox_.backlog().ring_bytes);
  EXPECT_EQ(outbox_.backlog().waiting_bytes, 12 * kRoom);
  Inbox inbox(kFrames, size_t{1} << 20);
  for (int i = 0; i < 2; ++i) {
    Read(&inbox, /*confirm=*/true);
    Post();
  }
  Read(&inbox, /*confirm=*/true);
  EXPECT_EQ(read_, std::vector<std::string>(20, text));
  EXPECT_TRUE(outbox_.Idle());
  EXPECT_EQ(outbox_.delivered(), 20u);
}

TEST_F(OutboxTest, RecordsOfAnyLengthComeOutAsTheyWere) {
  std::mt19937 random(4);
  Inbox inbox(kFrames, kFrames / 2 * Domain::frame_bytes());
  std::vector<std::string> sent;
  for (int i = 0; i < 2000; ++i) {
    // Of every length about the end of a message, too.
    const size_t length = random() % 4 == 0   ? random() % (kFrames / 2 * kRoom - 8)
                          : random() % 2 == 0 ? kRoom - random() % 40
                                              : random() % 100;
    sent.push_back(std::string(length, static_cast<char>('a' + i % 26)));
    ASSERT_TRUE(Add(sent.back()).ok());
    if (random() % 3 == 0) outbox_.Close();
    if (random() % 3 != 0) continue;
    Post();
    Read(&inbox, random() % 2 == 0);
  }
  while (!outbox_.Idle()) {
    outbox_.Close();
    Post();
    Read(&inbox, /*confirm=*/true);
  }
  EXPECT_TRUE(read_ == sent);
  EXPECT_EQ(outbox_.delivered(), 2000u);
}

TEST_F(OutboxTest, ARecordLongerThanThePeerTakesIsRefused) {
  const size_t longest = kFrames / 2 * kRoom - sizeof(RecordHeader);
  EXPECT_EQ(Add(std::string(longest + 1, 'x')).code(), Code::kInvalidArgument);
  EXPECT_TRUE(Add(std::string(longest, 'x')).ok());
}

TEST_F(OutboxTest, TooMuchThatWaitsIsRefused) {
  const std::string text(60'000, 'x');
  Status added;
  uint64_t count = 0;
  while (added.ok()) {
    added = Add(text);
    ++count;
    ASSERT_LT(count * text.size(), uint64_t{1} << 30);
  }
  EXPECT_EQ(added.code(), Code::kResourceExhausted);
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

TEST_F(OutboxTest, WhatIsDroppedIsGone) {
  ASSERT_TRUE(Add("sent").ok());
  outbox_.Close();
  Post();
  ASSERT_TRUE(Add(std::string(50'000, 'x')).ok());
  outbox_.Drop();
  EXPECT_TRUE(outbox_.Front().empty());
  EXPECT_FALSE(outbox_.HasOpen());
  EXPECT_FALSE(outbox_.Idle()) << "what was sent may still be confirmed";
  EXPECT_TRUE(outbox_.OnConfirmed(1));
  EXPECT_TRUE(outbox_.Idle());
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
