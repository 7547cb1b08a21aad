// The outgoing half of a channel's stream: what it gives to an inbox comes out there as it was.

#include "fabric/libfabric/outbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fabric/libfabric/inbox.h"
#include "fabric/libfabric/providers.h"
#include "libfabric_pair.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint32_t kFrames = 8;
constexpr size_t kRoom = Domain::frame_bytes() - sizeof(MessageHeader);

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Settings settings = testing::OnFaulty();
    ASSERT_TRUE(LoadLibrary(settings.libfabric.library, &library_).ok());
    std::vector<Provider> providers;
    ASSERT_TRUE(FindProviders(*library_, settings, &providers).ok());
    ASSERT_TRUE(Domain::Open(library_, providers[0].nics[0].get(), &domain_).ok());
    outbox_ = std::make_unique<Outbox>(domain_.get());
    outbox_->Attach(kFrames);
  }
  void TearDown() override {
    for (const OutgoingMessage& message : posted_) domain_->ReturnFrame(message.frame);
  }

  Status Add(const std::string& text, uint64_t writes = 0) {
    const iovec parts[] = {
        {const_cast<char*>(text.data()), text.size() / 2},
        {const_cast<char*>(text.data()) + text.size() / 2, text.size() - text.size() / 2}};
    const Status added = outbox_->Add(RecordKind::kNotification, parts, 2, number_ + 1, writes);
    if (added.ok()) ++number_;
    return added;
  }
  void Post() {
    while (outbox_->Front() != nullptr) {
      posted_.push_back(*outbox_->Front());
      outbox_->Pop();
    }
  }
  // The peer reads what was posted, and confirms some of it.
  void Read(Inbox* inbox, bool confirm) {
    for (const OutgoingMessage& message : posted_) {
      MessageHeader header = {};
      header.sequence = message.sequence;
      const std::string_view bytes(message.frame.data + sizeof(header),
                                   message.length - sizeof(header));
      EXPECT_TRUE(inbox
                      ->Take(header, bytes, 1,
                             [&](RecordKind, std::string_view record) {
                               read_.emplace_back(record);
                               return OkStatus();
                             })
                      .ok());
      domain_->ReturnFrame(message.frame);
    }
    posted_.clear();
    if (confirm) {
      EXPECT_TRUE(outbox_->OnConfirmed(inbox->read()));
    }
  }

  std::shared_ptr<const Library> library_;
  std::unique_ptr<Domain> domain_;
  std::unique_ptr<Outbox> outbox_;
  std::vector<OutgoingMessage> posted_;
  std::vector<std::string> read_;
  uint64_t number_ = 0;
};

TEST_F(OutboxTest, GathersRecordsUntilTheMessageIsClosed) {
  EXPECT_TRUE(outbox_->Idle());
  ASSERT_TRUE(Add("a", 1).ok());
  ASSERT_TRUE(Add("b", 3).ok());
  EXPECT_EQ(outbox_->Front(), nullptr);
  EXPECT_TRUE(outbox_->HasOpen());
  outbox_->Close();
  outbox_->Close();
  Post();
  ASSERT_EQ(posted_.size(), 1u);
  EXPECT_EQ(posted_[0].sequence, 1u);
  EXPECT_EQ(posted_[0].after, 3u);
  EXPECT_EQ(posted_[0].length, sizeof(MessageHeader) + 2 * (sizeof(RecordHeader) + 1));
  EXPECT_FALSE(outbox_->Idle());
  EXPECT_TRUE(outbox_->OnConfirmed(1));
  EXPECT_EQ(outbox_->delivered(), 2u);
  EXPECT_TRUE(outbox_->Idle());
}

// The messages that a record fills before its last one do not wait for the writes of this one.
TEST_F(OutboxTest, ARecordThatSpansMessagesIsDeliveredWithItsLast) {
  ASSERT_TRUE(Add("small", 1).ok());
  ASSERT_TRUE(Add(std::string(2 * kRoom, 'x'), 2).ok());
  outbox_->Close();
  Post();
  ASSERT_EQ(posted_.size(), 3u);
  EXPECT_TRUE(outbox_->OnConfirmed(2));
  EXPECT_EQ(outbox_->delivered(), 1u);
  EXPECT_TRUE(outbox_->OnConfirmed(3));
  EXPECT_EQ(outbox_->delivered(), 2u);
}

TEST_F(OutboxTest, WhatThePeerDoesNotReadWaits) {
  const std::string text(kRoom - sizeof(RecordHeader), 'x');
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Add(text).ok());
  outbox_->Close();
  Post();
  EXPECT_EQ(posted_.size(), kFrames);
  EXPECT_TRUE(outbox_->WantsConfirmation());
  EXPECT_EQ(outbox_->backlog().used_bytes, outbox_->backlog().ring_bytes);
  EXPECT_EQ(outbox_->backlog().waiting_bytes, 12 * text.size());
  Inbox inbox(kFrames, size_t{1} << 20);
  for (int i = 0; i < 2; ++i) {
    Read(&inbox, /*confirm=*/true);
    Post();
  }
  Read(&inbox, /*confirm=*/true);
  EXPECT_EQ(read_, std::vector<std::string>(20, text));
  EXPECT_TRUE(outbox_->Idle());
  EXPECT_EQ(outbox_->delivered(), 20u);
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
    if (random() % 3 == 0) outbox_->Close();
    if (random() % 3 != 0) continue;
    Post();
    Read(&inbox, random() % 2 == 0);
  }
  while (!outbox_->Idle()) {
    outbox_->Close();
    Post();
    Read(&inbox, /*confirm=*/true);
  }
  EXPECT_TRUE(read_ == sent);
  EXPECT_EQ(outbox_->delivered(), 2000u);
}

TEST_F(OutboxTest, ANotificationThatOthersPassIsDeliveredLast) {
  Inbox inbox(kFrames, kFrames / 2 * Domain::frame_bytes());
  ASSERT_TRUE(Add("first").ok());
  outbox_->Delay(2);
  number_ = 2;
  ASSERT_TRUE(Add("third").ok());
  outbox_->Close();
  Post();
  Read(&inbox, /*confirm=*/true);
  EXPECT_EQ(outbox_->delivered(), 1u);
  number_ = 1;
  ASSERT_TRUE(Add("second").ok());
  EXPECT_EQ(outbox_->delivered(), 1u);
  outbox_->Close();
  Post();
  Read(&inbox, /*confirm=*/true);
  EXPECT_EQ(outbox_->delivered(), 3u);
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
  EXPECT_FALSE(outbox_->OnConfirmed(1)) << "the message is still open";
  outbox_->Close();
  EXPECT_TRUE(outbox_->OnConfirmed(0));
  EXPECT_FALSE(outbox_->OnConfirmed(2));
  EXPECT_FALSE(outbox_->OnConfirmed(~uint64_t{0}));
  Post();
  EXPECT_TRUE(outbox_->OnConfirmed(1));
  EXPECT_TRUE(outbox_->OnConfirmed(0)) << "it came late";
  EXPECT_EQ(outbox_->delivered(), 1u);
}

TEST_F(OutboxTest, WhatIsDroppedGivesItsMemoryBack) {
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(Add(std::string(50'000, 'x')).ok());
    outbox_->Drop();
    EXPECT_EQ(outbox_->Front(), nullptr);
    outbox_ = std::make_unique<Outbox>(domain_.get());
    outbox_->Attach(kFrames);
  }
  // One slab of 128 messages is enough; of two, this would not be the last one's turn.
  std::vector<Frame> frames(128);
  for (Frame& frame : frames) ASSERT_TRUE(domain_->TakeFrame(&frame));
  char* lowest = frames[0].data;
  char* highest = frames[0].data;
  for (const Frame& frame : frames) {
    lowest = std::min(lowest, frame.data);
    highest = std::max(highest, frame.data);
    domain_->ReturnFrame(frame);
  }
  EXPECT_EQ(static_cast<size_t>(highest - lowest), 127 * Domain::frame_bytes());
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
