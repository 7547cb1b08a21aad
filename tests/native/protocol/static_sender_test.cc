// The polling thread and the senders of static edges whose slots lie at the receiver.
#include "protocol/static_sender.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "task.h"

namespace rdma_transport::testing {
namespace {

// To a peer in whose memory the slots lie. Writes wait as long as the test wants.
class SlowChannel final : public fabric::Channel {
 public:
  std::string Address() const override { return ""; }
  Status Connect(std::string_view, fabric::Role, const fabric::Terms&) override {
    return OkStatus();
  }
  Status Share(uint64_t) override { return OkStatus(); }
  bool Locate(const void*, fabric::RemoteSpan*) const override { return false; }
  const char* fabric() const override { return "slow"; }
  std::string Route() const override { return ""; }
  bool Copies() const override { return true; }
  Status Notify(const iovec* parts, int, fabric::Urgency, uint64_t*, fabric::After) override {
    if (refuses_) return Status(Code::kResourceExhausted, "the peer takes no notifications");
    TensorHeader header = {};
    ControlMessage control = {};
    if (parts[0].iov_len == sizeof(header)) {
      std::memcpy(&header, parts[0].iov_base, sizeof(header));
      if (header.edge.pool != pool_) requested_ = 0;
      pool_ = header.edge.pool;
      edge_ = header.edge.number;
    } else if (parts[0].iov_len == sizeof(control)) {
      std::memcpy(&control, parts[0].iov_base, sizeof(control));
      if (control.type == MessageType::kRequestSlots) requested_ += control.count;
      if (control.type == MessageType::kReturnSlot) returned_ = control.credit;
      if (control.type == MessageType::kRetire) retired_ = control.edge;
    }
    return OkStatus();
  }
  fabric::Backlog backlog() const override { return {}; }
  Status Read(const fabric::RemoteSpan&, char*, uint64_t) override { return OkStatus(); }
  Status Write(const char*, const fabric::RemoteSpan& place, uint64_t) override {
    std::unique_lock<std::mutex> lock(mu_);
    written_ = place.offset;
    ++writes_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return OkStatus();
  }
  void Close(const Status&) override {}

  // Of the edge that was declared last, and the slots requested for it.
  uint32_t pool() const { return pool_; }
  uint32_t requested() const { return requested_; }
  // The offset of the last write.
  uint64_t written() const { return written_; }
  // The number of the edge that was declared last, and of the one that was removed last.
  uint32_t edge() const { return edge_; }
  uint32_t retired() const { return retired_; }
  // The slot that was returned last.
  uint64_t returned() const { return returned_; }
  void SetRefuses(bool refuses) { refuses_ = refuses; }
  void SetOpen(bool open) {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = open;
    changed_.notify_all();
  }
  void AwaitWrites(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return writes_ >= count; }));
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = true;
  int writes_ = 0;
  uint32_t pool_ = 0;
  uint32_t edge_ = 0;
  uint32_t retired_ = 0;
  uint32_t requested_ = 0;
  uint64_t written_ = 0;
  uint64_t returned_ = ~uint64_t{0};
  bool refuses_ = false;  // notifications
};

class StaticSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Plan("edge");
    ASSERT_NE(channel_.pool(), 0u);
    EXPECT_EQ(channel_.requested(), 1u);
    ASSERT_TRUE(Provide(0).ok());
    // A miss gets a second slot.
    ASSERT_EQ(Send(), Mode::kStatic);
    ASSERT_EQ(Send(), Mode::kDynamic);
    ASSERT_EQ(channel_.requested(), 2u);
    ASSERT_TRUE(Provide(1).ok());
    ASSERT_TRUE(Credit(0).ok());
  }
  void Plan(const std::string& edge) {
    PlannedEdge planned;
    planned.spec = {edge, 4, kDims, kBytes};
    sender_.Offer(planned);
  }
  Status Provide(uint16_t slot) {
    PoolSlotMessage message = {};
    message.type = MessageType::kPoolSlot;
    message.slot = slot;
    message.pool = channel_.pool();
    message.region_offset = slot;
    return sender_.receiver_slots().OnSlot(message);
  }
  Status Credit(uint16_t slot) {
    return sender_.receiver_slots().OnCredit(CreditOf(channel_.pool(), slot));
  }
  Mode Send(const std::string& edge = "edge") {
    const std::string key = edge + ";0:0";
    Outgoing tensor = Tensor(1, key, payload_, kDims);
    SendOutcome outcome;
    if (!sender_.Send(&tensor, &outcome)) return Mode::kDynamic;
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    return outcome.mode;
  }
  EdgeReport Report() {
    std::vector<EdgeReport> reports;
    sender_.Report(&reports);
    return reports.at(0);
  }

  static constexpr size_t kBytes = 40000;
  const std::vector<int64_t> kDims = {static_cast<int64_t>(kBytes)};
  const std::shared_ptr<Payload> payload_ = std::make_shared<Payload>(kBytes, 1);
  const Settings settings_ = TestSettings();
  Traffic traffic_{"/job:a", "/job:b"};
  OutstandingBuffers outstanding_;
  const std::shared_ptr<SlowChannel> slow_ = std::make_shared<SlowChannel>();
  SlowChannel& channel_ = *slow_;
  ReliableNotifier notifier_{slow_, [] {}};
  const LinkContext context_ = {nullptr, nullptr, nullptr, nullptr, &settings_, &traffic_};
  StaticSender sender_{context_, &channel_, &notifier_, &outstanding_};
};

TEST_F(StaticSenderTest, MessagesOfTheReceiverDoNotWaitForASend) {
  EXPECT_EQ(Send(), Mode::kStatic);
  channel_.SetOpen(false);
  auto sending = std::async(std::launch::async, [this] { return Send(); });
  channel_.AwaitWrites(3);
  auto polling = std::async(std::launch::async, [this] { return Credit(0).ok(); });
  EXPECT_EQ(polling.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  channel_.SetOpen(true);
  EXPECT_TRUE(polling.get());
  EXPECT_EQ(sending.get(), Mode::kStatic);
  EXPECT_EQ(Report().busy, 1u);
}

// On a fabric without an order, its bytes could otherwise replace those of the next tensor there.
TEST_F(StaticSenderTest, ATensorThatCannotBeAnnouncedKeepsItsSlotUntilTheReceiverReturnsIt) {
  channel_.SetRefuses(true);
  const std::string key = "edge;0:0";
  Outgoing tensor = Tensor(1, key, payload_, kDims);
  SendOutcome outcome;
  EXPECT_TRUE(sender_.Send(&tensor, &outcome));
  EXPECT_EQ(outcome.status.code(), Code::kResourceExhausted);
  const uint64_t place = channel_.written();
  channel_.SetRefuses(false);
  EXPECT_TRUE(notifier_.SendQueued());
  EXPECT_EQ(channel_.returned(), CreditOf(channel_.pool(), static_cast<uint16_t>(place)));
  EXPECT_EQ(Report().busy, 1u);
  EXPECT_EQ(Send(), Mode::kStatic);
  EXPECT_NE(channel_.written(), place) << "the first write may still arrive";
  EXPECT_TRUE(Credit(static_cast<uint16_t>(place)).ok());
  EXPECT_EQ(Send(), Mode::kStatic);
  EXPECT_EQ(channel_.written(), place);
}

// Into an accelerator's memory, for example, which cannot be a slot.
TEST_F(StaticSenderTest, TensorsThatTheReceiverWantsToReadComeInNoSlot) {
  Plan("another");
  EXPECT_EQ(Send(), Mode::kStatic);
  const uint32_t edge = channel_.edge() - 1;
  sender_.OnReadLater(edge);
  EXPECT_TRUE(Credit(0).ok());
  EXPECT_EQ(Send(), Mode::kDynamic);
  EXPECT_EQ(channel_.retired(), edge);
  EXPECT_EQ(Send("another"), Mode::kStatic) << "it was not asked for";
  Plan("edge");
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Send(), Mode::kDynamic);
  sender_.OnReadLater(edge);  // it is removed
  sender_.Withdraw("edge");
  Plan("edge");
  EXPECT_EQ(Send(), Mode::kStatic) << "of another graph";
}

TEST_F(StaticSenderTest, APoolStaysWhileItHasAnEdge) {
  Plan("another");
  const uint32_t pool = channel_.pool();
  EXPECT_EQ(Send(), Mode::kStatic);
  sender_.Withdraw("edge");
  EXPECT_TRUE(Credit(0).ok());
  EXPECT_EQ(Send("another"), Mode::kStatic);
  sender_.Withdraw("another");
  EXPECT_TRUE(Credit(0).ok()) << "it may arrive after the edges were removed";
  EXPECT_TRUE(Provide(2).ok());
  Plan("edge");
  EXPECT_NE(channel_.pool(), pool);
  EXPECT_EQ(Send(), Mode::kDynamic) << "the slots of the old pool are not its own";
}

TEST_F(StaticSenderTest, MessagesThatCannotBeTrueAreRefused) {
  EXPECT_EQ(Credit(0).code(), Code::kDataLoss) << "it is not in use";
  EXPECT_EQ(Credit(2).code(), Code::kDataLoss) << "there is none";
  EXPECT_EQ(Provide(2).code(), Code::kDataLoss) << "nobody requested it";
  EXPECT_EQ(Send(), Mode::kStatic);
  EXPECT_TRUE(Credit(0).ok());
  EXPECT_EQ(Credit(0).code(), Code::kDataLoss) << "it was returned already";
}

}  // namespace
}  // namespace rdma_transport::testing
