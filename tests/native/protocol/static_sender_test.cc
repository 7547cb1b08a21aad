// The polling thread and the senders of one static edge.
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
  void Authenticate(std::string) override {}
  Status Connect(std::string_view, fabric::Role) override { return OkStatus(); }
  Status Share(uint64_t) override { return OkStatus(); }
  bool Locate(const void*, fabric::RemoteSpan*) const override { return false; }
  const char* fabric() const override { return "slow"; }
  std::string Route() const override { return ""; }
  bool MapsPeer() const override { return false; }
  bool Copies() const override { return true; }
  Status Notify(const iovec* parts, int, fabric::Urgency, uint64_t*) override {
    TensorHeader header = {};
    if (parts[0].iov_len != sizeof(header)) return OkStatus();
    std::memcpy(&header, parts[0].iov_base, sizeof(header));
    if (header.type == MessageType::kEdge) edge_ = static_cast<uint32_t>(header.buffer_id);
    return OkStatus();
  }
  fabric::Backlog backlog() const override { return {}; }
  Status Read(const fabric::RemoteSpan&, char*, uint64_t) override { return OkStatus(); }
  Status Write(const char*, const fabric::RemoteSpan&, uint64_t) override {
    std::unique_lock<std::mutex> lock(mu_);
    ++writes_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    return OkStatus();
  }
  fabric::MappedSpan Map(const fabric::RemoteSpan&) override { return {}; }
  bool Owns(const void*, fabric::RemoteSpan*) const override { return false; }
  void Close(const Status& reason) override { closed_ = reason; }

  uint32_t edge() const { return edge_; }
  Status closed() const { return closed_; }
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
  uint32_t edge_ = 0;
  Status closed_;
};

class StaticSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PlannedEdge planned;
    planned.spec = {"edge", 4, kDims, kBytes};
    sender_.Offer(planned);
    ASSERT_NE(channel_.edge(), 0u);
    for (uint16_t slot = 0; slot < 2; ++slot) ASSERT_TRUE(sender_.OnSlot(Slot(slot)).ok());
  }
  SlotMessage Slot(uint16_t number) const {
    SlotMessage message = {};
    message.type = MessageType::kSlot;
    message.flags = kReceiver;
    message.slot = number;
    message.edge = channel_.edge();
    message.generation = 1;
    return message;
  }
  Mode Send() {
    Outgoing tensor = Tensor(1, "edge;0:0", payload_, kDims);
    SendOutcome outcome;
    if (!sender_.Send(&tensor, &outcome)) return Mode::kDynamic;
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    return outcome.mode;
  }
  uint64_t Busy() const {
    std::vector<EdgeReport> reports;
    sender_.Report(&reports);
    return reports.at(0).busy;
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

TEST_F(StaticSenderTest, TheReceiversNewsWaitForNobodyWhoSends) {
  EXPECT_EQ(Send(), Mode::kStatic);
  channel_.SetOpen(false);
  auto sending = std::async(std::launch::async, [this] { return Send(); });
  channel_.AwaitWrites(2);
  auto polling = std::async(std::launch::async, [this] {
    return sender_.OnCredit(CreditOf(channel_.edge(), 0)).ok() && sender_.OnSlot(Slot(2)).ok();
  });
  EXPECT_EQ(polling.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  channel_.SetOpen(true);
  EXPECT_TRUE(polling.get());
  EXPECT_EQ(sending.get(), Mode::kStatic);
  EXPECT_EQ(Busy(), 1u);
  EXPECT_EQ(Send(), Mode::kStatic);
  EXPECT_EQ(Send(), Mode::kStatic);
  EXPECT_EQ(Busy(), 3u);
  EXPECT_EQ(Send(), Mode::kDynamic);
  EXPECT_TRUE(channel_.closed().ok());
}

TEST_F(StaticSenderTest, NewsThatCannotBeTrueEndTheChannel) {
  EXPECT_TRUE(sender_.OnCredit(CreditOf(channel_.edge(), 0)).ok());
  EXPECT_EQ(channel_.closed().code(), Code::kDataLoss);
}

TEST_F(StaticSenderTest, NewsWithoutEndAreRefused) {
  channel_.SetOpen(false);
  auto sending = std::async(std::launch::async, [this] { return Send(); });
  channel_.AwaitWrites(1);
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = sender_.OnCredit(CreditOf(channel_.edge(), 0));
  }
  EXPECT_EQ(status.code(), Code::kDataLoss);
  channel_.SetOpen(true);
  EXPECT_EQ(sending.get(), Mode::kStatic);
}

}  // namespace
}  // namespace rdma_transport::testing
