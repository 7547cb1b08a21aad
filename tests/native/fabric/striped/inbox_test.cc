// What arrives on several rails: what is refused.

#include "fabric/striped/inbox.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace rdma_transport::fabric::striped {
namespace {

std::string Header(RecordKind kind, uint64_t number, uint32_t back = 0, uint8_t waits = 0) {
  RecordHeader header;
  header.kind = kind;
  header.number = number;
  header.back = back;
  header.waits = waits;
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
}

std::string Note(uint64_t number, uint32_t back, const std::vector<Wait>& waits = {}) {
  const std::string end(reinterpret_cast<const char*>(waits.data()), waits.size() * sizeof(Wait));
  return Header(RecordKind::kNotification, number, back, static_cast<uint8_t>(waits.size())) +
         std::to_string(number) + end;
}

class InboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t rail = 0; rail < 2; ++rail) {
      inbox_.AddRail(rail);
      EXPECT_TRUE(Take(rail, Header(RecordKind::kHello, rail)).ok());
    }
  }
  Status Take(uint32_t rail, const std::string& bytes) {
    Inbox::Record record;
    bool now = false;
    const Status taken = inbox_.Take(rail, bytes, &record, &now);
    if (now) handed_ += " " + std::string(record.bytes);
    while (inbox_.Next(&record)) handed_ += " " + std::string(record.bytes);
    return taken;
  }

  Inbox inbox_;
  std::string handed_;
};

TEST_F(InboxTest, WhatIsNoPartOfTheProtocolIsRefused) {
  const std::string wrong[] = {
      "",
      "short",
      Header(RecordKind::kHello, 0),
      Header(RecordKind::kMark, 7),
      Header(RecordKind::kNotification, 0),
      Header(RecordKind::kNotification, 1, 2),
      Header(RecordKind::kNotification, ~uint64_t{0}),
      Header(RecordKind::kNotification, 1, 0, 1),
      Header(RecordKind::kNotification, 1, 0, 255) + std::string(100, '.'),
      Header(static_cast<RecordKind>(0), 1),
      Header(static_cast<RecordKind>(200), 1),
      Note(1, 0, {{2, 0, 1}}),
  };
  for (const std::string& bytes : wrong) {
    EXPECT_EQ(Take(0, bytes).code(), Code::kDataLoss) << bytes.size();
  }
  EXPECT_EQ(Take(7, Note(1, 0)).code(), Code::kDataLoss);
  inbox_.AddRail(2);
  EXPECT_EQ(Take(2, Note(1, 0)).code(), Code::kDataLoss) << "without a greeting";
  inbox_.AddRail(3);
  EXPECT_EQ(Take(3, Header(RecordKind::kHello, 2)).code(), Code::kDataLoss) << "of another rail";
  EXPECT_EQ(handed_, "");
}

TEST_F(InboxTest, MemoryIsBounded) {
  const std::string large(size_t{8} << 20, '.');
  Status taken;
  int held = 0;
  for (uint64_t number = 2; taken.ok() && held < 1000; ++number, ++held) {
    taken = Take(0, Header(RecordKind::kNotification, number, 1) + large);
  }
  EXPECT_EQ(taken.code(), Code::kResourceExhausted);
  EXPECT_LT(held, 100);
}

}  // namespace
}  // namespace rdma_transport::fabric::striped
