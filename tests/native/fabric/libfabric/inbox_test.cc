// The incoming half of a channel's stream: any order of messages and writes gives the same records,
// and what no correct peer sends is refused.

#include "fabric/libfabric/inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr uint32_t kFrames = 16;

std::string Record(const std::string& text, RecordKind kind = RecordKind::kNotification) {
  const RecordHeader header = {static_cast<uint32_t>(text.size()), kind};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + text;
}

class InboxTest : public ::testing::Test {
 protected:
  Status Take(uint64_t sequence, const std::string& bytes, uint64_t writes = 0) {
    MessageHeader header = {};
    header.sequence = sequence;
    header.writes = writes;
    header.kind = MessageKind::kStream;
    return inbox_.Take(header, bytes, ++now_, handle_);
  }
  Status TakeWrite(uint64_t sequence) {
    return inbox_.TakeWrite(static_cast<uint16_t>(sequence & 0xffff), ++now_, handle_);
  }

  std::vector<std::string> records_;
  Nanos now_ = 0;
  Status verdict_;  // on each record
  const Inbox::Handle handle_ = [this](RecordKind kind, std::string_view record) {
    records_.push_back(std::to_string(static_cast<uint32_t>(kind)) + std::string(record));
    return verdict_;
  };
  Inbox inbox_{kFrames};
};

using Records = std::vector<std::string>;

TEST_F(InboxTest, AnyOrderGivesTheSameRecords) {
  std::mt19937 random(3);
  uint64_t writes = 65'000;  // and over the end of 16 bits
  for (uint64_t write = 1; write <= writes; ++write) ASSERT_TRUE(TakeWrite(write).ok());
  for (int round = 0; round < 200; ++round) {
    struct Event {
      bool write;
      uint64_t sequence;
      std::string bytes;
      uint64_t writes;
    };
    records_.clear();
    Records expected;
    std::vector<Event> events;
    uint64_t sequence = inbox_.read();
    for (uint32_t message = 0; message < kFrames; ++message) {
      std::string records;
      for (uint64_t i = random() % 4; i > 0; --i) {
        const std::string text = std::to_string(i) + std::string(random() % 40, '.');
        const size_t cut = random() % 3 == 0 ? random() % text.size() : 0;  // in two parts
        if (cut > 0) records += Record(text.substr(0, cut), RecordKind::kPart);
        records += Record(text.substr(cut));
        expected.push_back("1" + text);
      }
      for (uint64_t i = random() % 10; i > 0; --i) events.push_back({true, ++writes, "", 0});
      events.push_back({false, ++sequence, records, writes});
    }
    std::shuffle(events.begin(), events.end(), random);
    for (const Event& event : events) {
      const Status taken =
          event.write ? TakeWrite(event.sequence) : Take(event.sequence, event.bytes, event.writes);
      ASSERT_TRUE(taken.ok()) << taken.message();
    }
    ASSERT_EQ(records_, expected);
    ASSERT_EQ(inbox_.read(), sequence);
    ASSERT_EQ(inbox_.arrived(), writes);
    ASSERT_EQ(inbox_.waiting_since(), 0);
  }
}

TEST_F(InboxTest, AMessageThatThePeerHasSentIsMissed) {
  ASSERT_TRUE(Take(1, Record("1")).ok());
  EXPECT_TRUE(inbox_.Expect(1, ++now_).ok());
  EXPECT_EQ(inbox_.waiting_since(), 0);
  EXPECT_TRUE(inbox_.Expect(3, ++now_).ok());
  EXPECT_EQ(inbox_.waiting_since(), now_);
  ASSERT_TRUE(Take(2, Record("2")).ok());
  EXPECT_EQ(inbox_.waiting_since(), now_) << "the next is missing since then";
  ASSERT_TRUE(Take(3, Record("3")).ok());
  EXPECT_EQ(inbox_.waiting_since(), 0);
  EXPECT_EQ(inbox_.Expect(kFrames + 4, ++now_).code(), Code::kDataLoss);
}

TEST_F(InboxTest, MessagesAtImpossiblePlacesAreRefused) {
  ASSERT_TRUE(Take(1, Record("x")).ok());
  ASSERT_TRUE(Take(3, Record("x")).ok());
  for (const uint64_t sequence :
       {uint64_t{0}, uint64_t{1}, uint64_t{kFrames + 2}, ~uint64_t{0}, uint64_t{1} << 63}) {
    EXPECT_EQ(Take(sequence, Record("x")).code(), Code::kDataLoss) << sequence;
  }
  EXPECT_EQ(Take(3, Record("x")).code(), Code::kDataLoss) << "it came twice";
  EXPECT_TRUE(Take(kFrames + 1, Record("x")).ok());
}

TEST_F(InboxTest, WritesAtImpossiblePlacesAreRefused) {
  for (const uint64_t sequence : {1, 2, 4}) ASSERT_TRUE(TakeWrite(sequence).ok());
  for (const uint64_t sequence : {uint64_t{1}, uint64_t{2}, uint64_t{4}, uint64_t{0},
                                  3 + kMaxUnconfirmedWrites + 1, uint64_t{0xffff}}) {
    EXPECT_EQ(TakeWrite(sequence).code(), Code::kDataLoss) << sequence;
  }
  EXPECT_TRUE(TakeWrite(3 + kMaxUnconfirmedWrites).ok());
}

TEST_F(InboxTest, RecordsAreWholeInTheirMessage) {
  const std::string record = Record("whole");
  for (const size_t length : {size_t{1}, sizeof(RecordHeader) - 1, record.size() - 1}) {
    Inbox other(kFrames);
    MessageHeader message = {};
    message.sequence = 1;
    const Status taken = other.Take(message, record + record.substr(0, length), 1, handle_);
    EXPECT_EQ(taken.code(), Code::kDataLoss) << length;
  }
  EXPECT_EQ(records_, Records(3, "1whole"));
}

TEST_F(InboxTest, ARecordThatDoesNotEndIsRefused) {
  const std::string part =
      Record(std::string(host::kLongestNotification / 4, 'x'), RecordKind::kPart);
  for (uint64_t sequence = 1; sequence <= 4; ++sequence) {
    ASSERT_TRUE(Take(sequence, part).ok());
  }
  EXPECT_EQ(Take(5, Record("xxxx")).code(), Code::kDataLoss);
  EXPECT_EQ(records_, Records());
}

}  // namespace
}  // namespace rdma_transport::fabric::libfabric
