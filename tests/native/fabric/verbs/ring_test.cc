// The ring of notifications against senders of every kind: those that keep to the rules, in
// whatever lengths, and those that write anything.

#include "fabric/verbs/ring.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fabric/verbs/device.h"
#include "fake_ibverbs/harness.h"
#include "verbs_pair.h"

namespace rdma_transport::fabric::verbs {
namespace {

using ::fake_ibverbs::testing::End;
using ::fake_ibverbs::testing::EndAddress;
using ::fake_ibverbs::testing::EndOptions;
using testing::ExpectHas;
using testing::OnFake;
using testing::OpenPlain;

// Both ends of a ring, and what lies between them: batches on their way, completions, credits.
class Ends {
 public:
  Ends(uint64_t size, uint32_t most_batches, unsigned seed) : random_(seed), ring_(size) {
    mirror_.resize(size);
    writer_.Attach(mirror_.data(), size, most_batches);
    reader_.Attach(ring_.data(), size, most_batches);
  }

  RingWriter& writer() { return writer_; }
  size_t received() const { return received_; }
  size_t credits() const { return most_credits_; }

  bool Append(const std::string& text) {
    const iovec part = {const_cast<char*>(text.data()), text.size()};
    RingWriter::Room room = writer_.Append(RecordKind::kNotification, &part, 1, text.size());
    if (room == RingWriter::Room::kCloseFirst) {
      if (!Close()) return false;
      room = writer_.Append(RecordKind::kNotification, &part, 1, text.size());
      EXPECT_NE(room, RingWriter::Room::kCloseFirst);
    }
    if (room != RingWriter::Room::kTaken) return false;
    sent_.push_back(text);
    return true;
  }
  bool Close() {
    Batch batch;
    if (!writer_.Close(&batch)) return false;
    EXPECT_LE(batch.offset + batch.length, mirror_.size());
    on_way_.push_back(batch);
    return true;
  }
  // The card writes the oldest batch and says so, in any order.
  void Arrive() {
    if (on_way_.empty()) return;
    const Batch batch = on_way_.front();
    on_way_.pop_front();
    std::memcpy(ring_.data() + batch.offset, mirror_.data() + batch.offset, batch.length);
    written_.push_back(batch);
    ASSERT_TRUE(reader_.Begin(Immediate::Decode(batch.immediate)).ok());
    for (bool more = true; more;) {
      RecordKind kind{};
      std::string_view record;
      ASSERT_TRUE(reader_.Next(&kind, &record, &more).ok());
      if (!more) break;
      ASSERT_FALSE(sent_.empty());
      ASSERT_EQ(record, sent_.front());
      sent_.pop_front();
      ++received_;
    }
    for (Immediate credit; reader_.TakeCredit(&credit);) credits_.push_back(credit);
    most_credits_ = std::max(most_credits_, credits_.size());
  }
  void Complete() {
    if (written_.empty()) return;
    writer_.OnWritten(written_.front().end);
    written_.pop_front();
  }
  void Credit() {
    if (credits_.empty()) return;
    ASSERT_TRUE(writer_.OnCredit(Immediate::Decode(credits_.front().Encode())).ok());
    credits_.pop_front();
  }
  // One of the things that may happen next.
  void Happen() {
    switch (random_() % 4) {
      case 0:
        return static_cast<void>(Close());
      case 1:
        return Arrive();
      case 2:
        return Complete();
      default:
        return Credit();
    }
  }
  void Settle() {
    while (writer_.HasOpenBatch() || !on_way_.empty() || !written_.empty() || !credits_.empty()) {
      Happen();
    }
    EXPECT_TRUE(sent_.empty());
    EXPECT_TRUE(writer_.AllWritten());
  }

 private:
  std::mt19937 random_;
  std::vector<char> mirror_;
  std::vector<char> ring_;
  RingWriter writer_;
  RingReader reader_;
  std::deque<Batch> on_way_;
  std::deque<Batch> written_;
  std::deque<Immediate> credits_;
  std::deque<std::string> sent_;
  size_t received_ = 0;
  size_t most_credits_ = 0;
};

TEST(Ring, WhateverTheLengthsAllComesInOrderAndNothingEverJams) {
  const struct {
    uint64_t size;
    uint32_t batches;
  } rings[] = {{1024, 1}, {4096, 3}, {65536, 16}, {kMaxRing, 256}, {kMaxRing, 4096}};
  for (const auto& [size, batches] : rings) {
    SCOPED_TRACE(size);
    Ends ends(size, batches, static_cast<unsigned>(size));
    std::mt19937_64 random(size);
    const size_t largest = ends.writer().LargestRecord();
    size_t appended = 0;
    for (int i = 0; i < 2000 && !HasFailure(); ++i) {
      const size_t length =
          random() % 4 == 0 ? largest - random() % 9 : random() % (largest / (1 + random() % 64));
      const std::string text(length, static_cast<char>('a' + i % 26));
      int waits = 0;
      while (!ends.Append(text)) {
        ASSERT_LT(++waits, 10000) << "jammed";
        ends.Happen();
      }
      ++appended;
      if (size == kMaxRing && i > 200) break;  // enough bytes
      for (unsigned n = random() % 3; n > 0; --n) ends.Happen();
    }
    ends.Settle();
    EXPECT_EQ(ends.received(), appended);
    EXPECT_LE(ends.credits(), 8u);
  }
}

TEST(Ring, RoomThatWasNeverTakenCannotBeGivenBack) {
  std::vector<char> mirror(4096);
  for (const Immediate& credit : {Immediate{true, false, 65, 0}, Immediate{true, false, 1, 0},
                                  Immediate{true, false, 0, 1}}) {
    RingWriter writer;
    writer.Attach(mirror.data(), mirror.size(), 4);
    EXPECT_EQ(writer.OnCredit(credit).code(), Code::kDataLoss);
  }
}

// This side pins as much as a peer asks for.
TEST(Ring, APeerMayAskForSomeMemoryAndNoMore) {
  ChannelAddress address;
  address.token = std::string(kTokenLength, 't');
  const auto accepts = [&](uint64_t ring, uint32_t batches) {
    address.ring_size = ring;
    address.most_batches = batches;
    ChannelAddress decoded;
    return ChannelAddress::Decode(address.Encode(), &decoded).ok();
  };
  for (const uint64_t ring : {kMinRing, kSmallRing, kMaxRing})
    EXPECT_TRUE(accepts(ring, 16)) << ring;
  for (const uint64_t ring :
       {uint64_t{0}, kMinRing - kUnit, kSmallRing + kUnit, kMaxRing + kMinRing, ~uint64_t{0}}) {
    EXPECT_FALSE(accepts(ring, 16)) << ring;
  }
  EXPECT_FALSE(accepts(kSmallRing, 0));
  EXPECT_TRUE(accepts(kSmallRing, VerbsSettings::kMaxQueueDepth));
  EXPECT_FALSE(accepts(kSmallRing, VerbsSettings::kMaxQueueDepth + 1));
}

// --- A peer that knows the address, but not the manners ---

class Hostile : public testing::VerbsPairTest {
 protected:
  // A channel of b's whose peer is a bare queue pair.
  void ConnectBare(int receives = 60) {
    ASSERT_TRUE(OpenDevice(settings_, &a_.device).ok());
    ASSERT_TRUE(OpenPlain(settings_, &b_.device).ok());
    ASSERT_TRUE(OpenChannel(&b_).ok());
    ASSERT_TRUE(ChannelAddress::Decode(b_.channel->Address(), &address_).ok());
    EndOptions options;
    options.context = ::fake_ibverbs::testing::OpenDevice();
    options.bytes = 256 << 10;
    end_ = std::make_unique<End>(options);
    ChannelAddress own = address_;  // the same port
    own.number = end_->qp->qp_num;
    own.first_psn = 100;
    own.ring_address = reinterpret_cast<uint64_t>(end_->memory.data());
    own.ring_rkey = end_->mr->rkey;
    own.ring_size = end_->memory.size();
    own.token = std::string(kTokenLength, 'h');
    ASSERT_TRUE(b_.channel->Connect(own.Encode(), Role::kPassive).ok());
    ring_ = {address_.number, {}, address_.ring_address, address_.ring_rkey};
    std::memcpy(ring_.gid.raw, address_.gid.data(), address_.gid.size());
    ASSERT_EQ(end_->ToInit(), 0);
    for (int i = 0; i < receives; ++i) ASSERT_EQ(end_->Receive(), 0);
    ibv_qp_attr attributes = end_->RtrAttr(ring_);
    attributes.rq_psn = address_.first_psn;
    attributes.path_mtu = static_cast<ibv_mtu>(address_.mtu);
    ASSERT_EQ(::fake_ibverbs::testing::V().ibv_modify_qp(end_->qp, &attributes, End::kToRtr), 0);
    ASSERT_EQ(end_->ToRts(), 0);
  }
  void TearDown() override {
    if (end_ != nullptr) {
      ibv_context* context = end_->context;
      end_.reset();
      EXPECT_EQ(::fake_ibverbs::testing::V().ibv_close_device(context), 0);
    }
    VerbsPairTest::TearDown();
  }
  // Writes `bytes` to that offset of the ring, and says so with this immediate.
  void Write(const std::string& bytes, uint64_t offset, uint32_t immediate) {
    char* source = end_->memory.data() + (128 << 10);
    std::memcpy(source, bytes.data(), bytes.size());
    ibv_sge piece = end_->Piece(128 << 10, bytes.size());
    ibv_send_wr wr = {};
    wr.wr_id = 77;
    wr.sg_list = &piece;
    wr.num_sge = bytes.empty() ? 0 : 1;
    wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(immediate);
    wr.wr.rdma.remote_addr = address_.ring_address + offset;
    wr.wr.rdma.rkey = address_.ring_rkey;
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(end_->qp, &wr, &bad), 0);
    // How it ends is b's affair. Receives complete in the same queue.
    ASSERT_TRUE(PollUntil([&] {
      ibv_wc completion;
      return ibv_poll_cq(end_->cq, 1, &completion) > 0 && completion.wr_id == wr.wr_id;
    }));
    Poll();  // b takes it, and offers its receive again: this peer does not wait for room
  }
  static std::string Record(RecordKind kind, const std::string& body) {
    const RecordHeader header = {static_cast<uint32_t>(body.size()), kind};
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
    bytes += body;
    const uint32_t mark = kNoMoreRecords;
    bytes.resize((bytes.size() + 7) / 8 * 8);
    bytes.append(reinterpret_cast<const char*>(&mark), sizeof(mark));
    bytes.resize((bytes.size() + kUnit - 1) / kUnit * kUnit);
    return bytes;
  }
  static uint32_t Units(const std::string& bytes) {
    return static_cast<uint32_t>(bytes.size() / kUnit);
  }
  void Greet() {
    const Greeting greeting("", Role::kActive, std::string(kTokenLength, 'h'), address_.token);
    const std::string hello = Record(RecordKind::kHello, greeting.own());
    Write(hello, 0, Units(hello));
    ASSERT_TRUE(PollUntil([&] { return b_.handler->connected; }));
  }
  void ExpectRefused(const char* why) {
    ASSERT_TRUE(PollUntil([&] { return b_.handler->closed; }, 3 * kSecond)) << why;
    ExpectHas(b_.handler->reason, why);
    EXPECT_TRUE(b_.handler->notes.empty());
  }

  Settings settings_ = OnFake();
  ChannelAddress address_;
  EndAddress ring_;
  std::unique_ptr<End> end_;
};

TEST_F(Hostile, WhoDoesNotGreetIsNotHeard) {
  ConnectBare();
  const std::string note = Record(RecordKind::kNotification, "let me in");
  Write(note, 0, Units(note));
  ExpectRefused("an unexpected record");
  EXPECT_FALSE(b_.handler->connected);
}

TEST_F(Hostile, AnotherTokenIsNotBelieved) {
  ConnectBare();
  const std::string hello = Record(RecordKind::kHello, std::string(kTokenLength, 'x'));
  Write(hello, 0, Units(hello));
  ExpectRefused("did not prove");
  EXPECT_FALSE(b_.handler->connected);
}

TEST_F(Hostile, ARecordLongerThanItsBatch) {
  ConnectBare();
  Greet();
  std::string note = Record(RecordKind::kNotification, "long");
  note[1] = 1;
  Write(note, kUnit, Units(note));
  // What comes after it is not listened to, even if it were right.
  const std::string right = Record(RecordKind::kNotification, "right");
  if (!b_.handler->closed) Write(right, 2 * kUnit, Units(right));
  ExpectRefused("longer than its batch");
}

TEST_F(Hostile, ABatchBeyondTheEndOfTheRing) {
  ConnectBare();
  Greet();
  Write("", 0, kMaxUnits);
  ExpectRefused("impossible length");
}

TEST_F(Hostile, ACreditForNothing) {
  ConnectBare();
  Greet();
  Write("", 0, Immediate{true, false, 4000, 2}.Encode());
  ExpectRefused("more room back");
}

TEST_F(Hostile, ANotificationThatDoesNotEnd) {
  ConnectBare();
  Greet();
  const std::string part = Record(RecordKind::kPart, std::string(kSmallRing / 4, 'p'));
  for (uint64_t sent = 0; sent <= host::kLongestNotification && !b_.handler->closed;
       sent += kSmallRing / 4) {
    Write(part, 0, Immediate{false, true, Units(part), 0}.Encode());
    for (int i = 0; i < 2; ++i) end_->Receive();  // for credits
  }
  ExpectRefused("does not end");
}

TEST_F(Hostile, ARegionDescribedInAWrongSize) {
  ConnectBare();
  Greet();
  const std::string region = Record(RecordKind::kRegion, "short");
  Write(region, kUnit, Units(region));
  ExpectRefused("malformed description of a region");
}

TEST_F(Hostile, MoreRegionsThanAnyArenaHas) {
  ConnectBare();
  Greet();
  constexpr uint64_t kEach = 200;
  uint64_t key = 0;
  uint64_t at = kUnit;
  while (!b_.handler->closed && key < 2 * host::kMaxRegions) {
    std::string batch;
    for (uint64_t i = 0; i < kEach; ++i) {
      const RegionRecord region = {++key, 4096, 0, 1, 0};
      const RecordHeader header = {sizeof(region), RecordKind::kRegion};
      batch.append(reinterpret_cast<const char*>(&header), sizeof(header));
      batch.append(reinterpret_cast<const char*>(&region), sizeof(region));
    }
    batch += Record(RecordKind::kNotification, "all read");
    const bool wraps = at + batch.size() > address_.ring_size;
    if (wraps) at = 0;
    const Immediate immediate = {false, wraps, Units(batch), 0};
    const size_t before = b_.handler->notes.size();
    Write(batch, at, immediate.Encode());
    at += batch.size();
    for (int i = 0; i < 2; ++i) end_->Receive();  // for credits, unless enough are left
    ASSERT_TRUE(PollUntil([&] { return b_.handler->notes.size() > before || b_.handler->closed; }));
  }
  EXPECT_LE(key, host::kMaxRegions + kEach);
  ExpectHas(b_.handler->reason, "memory regions");
}

TEST_F(Hostile, AReasonOfAnyBytesIsMadePrintable) {
  ConnectBare();
  Greet();
  const std::string bye =
      Record(RecordKind::kBye, std::string("\x1b[2J\n\xff") + std::string(9000, 'x'));
  Write(bye, kUnit, Units(bye));
  ExpectRefused("?[2J??xxx");
  EXPECT_LT(b_.handler->reason.message().size(), 2000u);
}

// What gives room back must not pile up here.
TEST_F(Hostile, APeerThatTakesNoCredits) {
  lacks_receives_ = true;
  ConnectBare(/*receives=*/1);
  Greet();
  const std::string note = Record(RecordKind::kNotification, "");
  for (int i = 0; i < 4096 && !b_.handler->closed; ++i) {
    Write(note, (1 + i) % (address_.ring_size / kUnit) * kUnit, Units(note));
  }
  ASSERT_TRUE(PollUntil([&] { return b_.handler->closed; }, 3 * kSecond));
  ExpectHas(b_.handler->reason, "without using the room");
}

TEST_F(Hostile, RecordsOfRandomBytes) {
  std::mt19937_64 random(9);
  ConnectBare();
  Greet();
  for (int i = 0; i < 50 && !b_.handler->closed; ++i) {
    std::string bytes(kUnit * (1 + random() % 4), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 5 == 0 ? random() : 0);
    const uint64_t offset = random() % (address_.ring_size / kUnit - 4) * kUnit;
    Write(bytes, offset, static_cast<uint32_t>(random()) & 0xc0000fff);
  }
  EXPECT_TRUE(PollUntil([&] { return b_.handler->closed; }, 3 * kSecond));
}

class Flood : public testing::VerbsPairTest {};

// The polling thread serves the others, too.
TEST_F(Flood, OnePollTakesABoundedNumberOfCompletions) {
  Settings settings = OnFake();
  settings.verbs.queue_depth = 2048;
  ASSERT_NO_FATAL_FAILURE(ConnectedPair(settings));
  // Each leaves in a batch of its own, and takes a unit of the ring.
  constexpr size_t kNotes = kLargeRing / kUnit / 4;
  for (size_t i = 0; i < kNotes; ++i) ASSERT_TRUE(a_.Notify("x").ok());
  const Nanos deadline = Now() + 10 * kSecond;
  while (a_.handler->delivered < kNotes && Now() < deadline) a_.device->Poll();
  ASSERT_EQ(a_.handler->delivered, kNotes);
  EXPECT_TRUE(b_.handler->notes.empty());
  b_.device->Poll();
  EXPECT_LT(b_.handler->notes.size(), kNotes / 2);
  EXPECT_TRUE(PollUntil([&] { return b_.handler->notes.size() == kNotes; }));
}

}  // namespace
}  // namespace rdma_transport::fabric::verbs
