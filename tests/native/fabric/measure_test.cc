// Measurements of a channel see every byte that does not arrive as it was sent.

#include "fabric/measure.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fabric/registry.h"
#include "fabrics.h"

namespace rdma_transport::fabric {
namespace {

constexpr uint64_t kLargest = 64 << 10;

// Leaves the first byte of each transfer where it is, and flips that of each large notification.
class LossyChannel : public Channel {
 public:
  explicit LossyChannel(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}

  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override {
    const RemoteSpan rest = {source.key, source.offset + 1, source.length - 1};
    return channel_->Read(rest, destination + 1, cookie);
  }
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override {
    const RemoteSpan rest = {destination.key, destination.offset + 1, destination.length - 1};
    return channel_->Write(source + 1, rest, cookie);
  }
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override {
    std::string flipped(static_cast<const char*>(parts[0].iov_base), parts[0].iov_len);
    if (flipped.size() > 32) flipped[0] = static_cast<char>(~flipped[0]);
    EXPECT_EQ(count, 1);
    const iovec part = {flipped.data(), flipped.size()};
    return channel_->Notify(&part, 1, urgency, number, after);
  }

  std::string Address() const override { return channel_->Address(); }
  Status Connect(std::string_view peer, Role role, const Terms& terms) override {
    return channel_->Connect(peer, role, terms);
  }
  Status Share(uint64_t key) override { return channel_->Share(key); }
  bool Locate(const void* data, RemoteSpan* span) const override {
    return channel_->Locate(data, span);
  }
  const char* fabric() const override { return channel_->fabric(); }
  std::string Route() const override { return channel_->Route(); }
  bool MapsPeer() const override { return channel_->MapsPeer(); }
  bool Copies() const override { return channel_->Copies(); }
  Backlog backlog() const override { return channel_->backlog(); }
  Status Flush() override { return channel_->Flush(); }
  MappedSpan Map(const RemoteSpan& span) override { return channel_->Map(span); }
  bool Owns(const void* data, RemoteSpan* span) const override {
    return channel_->Owns(data, span);
  }
  void Close(const Status& reason) override { channel_->Close(reason); }

 protected:
  const std::shared_ptr<Channel> channel_;
};

// Leaves the first byte of each longer write where it is, and no other.
class PartialChannel final : public LossyChannel {
 public:
  using LossyChannel::LossyChannel;

  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override {
    if (destination.length == 1) return channel_->Write(source, destination, cookie);
    return LossyChannel::Write(source, destination, cookie);
  }
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override {
    return channel_->Notify(parts, count, urgency, number, after);
  }
};

// Each tenth notification arrives after the next one; each tenth of these comes twice.
class OvertakingChannel final : public LossyChannel {
 public:
  using LossyChannel::LossyChannel;

  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override {
    return channel_->Write(source, destination, cookie);
  }
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override {
    EXPECT_EQ(count, 1);
    const bool head = ++notes_ > kFirst && parts[0].iov_len >= 32;
    if (head && notes_ % 10 == 0) {
      held_.assign(static_cast<const char*>(parts[0].iov_base), parts[0].iov_len);
      return OkStatus();
    }
    RDMA_RETURN_IF_ERROR(channel_->Notify(parts, count, urgency, number, after));
    if (!head || held_.empty()) return OkStatus();
    const iovec late = {held_.data(), held_.size()};
    RDMA_RETURN_IF_ERROR(channel_->Notify(&late, 1, urgency, number, After::Everything()));
    if (notes_ % 100 == 1) {
      RDMA_RETURN_IF_ERROR(channel_->Notify(&late, 1, urgency, number, After::Everything()));
    }
    held_.clear();
    return OkStatus();
  }

 private:
  static constexpr int kFirst = 20;
  int notes_ = 0;
  std::string held_;
};

enum class Behavior { kRight, kLossy, kPartial, kOvertaking };

class LossyDevice final : public Device {
 public:
  LossyDevice(std::unique_ptr<Device> device, Behavior behavior)
      : device_(std::move(device)), behavior_(behavior) {}

  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override {
    std::shared_ptr<Channel> whole;
    RDMA_RETURN_IF_ERROR(device_->Open(std::move(handler), &whole));
    if (behavior_ == Behavior::kPartial) {
      *channel = std::make_shared<PartialChannel>(std::move(whole));
    } else if (behavior_ == Behavior::kOvertaking) {
      *channel = std::make_shared<OvertakingChannel>(std::move(whole));
    } else {
      *channel = std::make_shared<LossyChannel>(std::move(whole));
    }
    return OkStatus();
  }

  std::string Summary() const override { return device_->Summary(); }
  bool Usable() const override { return device_->Usable(); }
  Status Reaches(std::string_view address) const override { return device_->Reaches(address); }
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override {
    return device_->Allocate(length, access, place, region);
  }
  size_t RegionGranule() const override { return device_->RegionGranule(); }
  Status Adopt(Region* region) override { return device_->Adopt(region); }
  MappedSpan MapOwn(const RemoteSpan& span) override { return device_->MapOwn(span); }
  bool Locate(const void* data, RemoteSpan* span) const override {
    return device_->Locate(data, span);
  }
  int Poll() override { return device_->Poll(); }
  bool ArmNotification() override { return device_->ArmNotification(); }
  void Sleep(Nanos deadline) override { device_->Sleep(deadline); }
  void Wake() override { device_->Wake(); }
  int WaitDescriptor() const override { return device_->WaitDescriptor(); }

 private:
  const std::unique_ptr<Device> device_;
  const Behavior behavior_;
};

std::unique_ptr<Device> OpenOne(Behavior behavior) {
  std::unique_ptr<Device> device;
  const Status opened = OpenDevice(testing::FabricSettings(), &device);
  EXPECT_TRUE(opened.ok()) << opened.message();
  if (behavior != Behavior::kRight) {
    device = std::make_unique<LossyDevice>(std::move(device), behavior);
  }
  return device;
}

// What was wrong in each of the plans, which run one after the other.
std::vector<uint64_t> WrongBytes(Behavior behavior, const std::vector<Plan>& plans,
                                 Found* found = nullptr) {
  const std::unique_ptr<Device> devices[2] = {OpenOne(behavior), OpenOne(Behavior::kRight)};
  std::shared_ptr<Meter> active;
  std::shared_ptr<Meter> passive;
  EXPECT_TRUE(Meter::Open(devices[0].get(), kLargest, &active).ok());
  EXPECT_TRUE(Meter::Open(devices[1].get(), kLargest, &passive).ok());
  EXPECT_TRUE(passive->Connect(active->Address(), Role::kPassive).ok());
  EXPECT_TRUE(active->Connect(passive->Address(), Role::kActive).ok());
  std::atomic<size_t> ended{0};
  std::thread serving([&] {
    const Status met = passive->Introduce(20 * kSecond);
    EXPECT_TRUE(met.ok()) << met.message();
    for (size_t i = 0; i < plans.size(); ++i) {
      // As between two processes, nobody polls here until the other side has all.
      while (ended.load() < i) std::this_thread::yield();
      const Status served = passive->Serve(plans[i]);
      EXPECT_TRUE(served.ok()) << served.message();
    }
  });
  std::vector<uint64_t> wrong;
  const Status met = active->Introduce(20 * kSecond);
  EXPECT_TRUE(met.ok()) << met.message();
  for (const Plan& plan : plans) {
    Measured measured;
    const Status ran = active->Run(plan, &measured);
    EXPECT_TRUE(ran.ok()) << ran.message();
    wrong.push_back(measured.wrong);
    ended.fetch_add(1);
  }
  serving.join();
  if (found != nullptr) *found = passive->found();
  active->Close();
  active.reset();
  passive.reset();
  return wrong;
}

std::vector<Plan> AllTests(uint64_t bytes, uint64_t iterations) {
  std::vector<Plan> plans;
  for (const Test test : {Test::kNotifyLatency, Test::kWriteLatency, Test::kReadLatency,
                          Test::kWriteBandwidth, Test::kReadBandwidth, Test::kNotifyRate}) {
    Plan plan;
    plan.test = test;
    plan.bytes = bytes;
    plan.iterations = iterations;
    plan.timeout = 20 * kSecond;
    plans.push_back(plan);
  }
  return plans;
}

TEST(MeasureTest, WhatArrivesAsItWasSentIsNotWrong) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{7}, uint64_t{64}, uint64_t{4099}, kLargest}) {
    // More iterations than a byte can number; and more than the window of a flood.
    for (const uint64_t iterations : {uint64_t{1}, uint64_t{300}, uint64_t{1500}}) {
      if (bytes * iterations > uint64_t{2} << 20) continue;
      EXPECT_EQ(WrongBytes(Behavior::kRight, AllTests(bytes, iterations)),
                std::vector<uint64_t>(6, 0))
          << bytes << " bytes, " << iterations << " iterations";
    }
  }
}

// Of what each test compares, in the order of AllTests().
const std::vector<uint64_t> kOneEach = {kComparedNotes, 1, 1, 1, 1, kComparedNotes};

TEST(MeasureTest, OneWrongByteOfManyIsCounted) {
  for (const uint64_t bytes : {uint64_t{64}, uint64_t{4099}, kLargest}) {
    EXPECT_EQ(WrongBytes(Behavior::kLossy, AllTests(bytes, 300)), kOneEach) << bytes;
  }
}

// A place that an earlier turn left right must not make this one right.
TEST(MeasureTest, EachTurnIsComparedForItself) {
  std::vector<Plan> plans = AllTests(4099, 20);
  const std::vector<Plan> again = plans;
  plans.insert(plans.end(), again.begin(), again.end());
  std::vector<uint64_t> wrong = kOneEach;
  wrong.insert(wrong.end(), kOneEach.begin(), kOneEach.end());
  EXPECT_EQ(WrongBytes(Behavior::kLossy, plans), wrong);
}

Plan OrderPlan() {
  Plan plan;
  plan.test = Test::kOrder;
  plan.bytes = kLargest / 4;
  plan.iterations = 2005;  // the last one is not held by an OvertakingChannel
  plan.timeout = 20 * kSecond;
  return plan;
}

TEST(MeasureTest, AnOrderedChannelHasNoFaults) {
  Found found;
  // Other tests may come before and after it.
  std::vector<Plan> plans = AllTests(64, 3);
  plans.insert(plans.begin(), {OrderPlan(), OrderPlan()});
  plans.push_back(OrderPlan());
  EXPECT_EQ(WrongBytes(Behavior::kRight, plans, &found), std::vector<uint64_t>(9, 0));
  EXPECT_EQ(found.notes, OrderPlan().iterations);
  EXPECT_GT(found.writes, 400u);
  EXPECT_GT(found.bytes, found.writes * 100);
  EXPECT_EQ(found.first, "");
}

TEST(MeasureTest, AWriteWhoseBytesAreNotThereIsFound) {
  Found found;
  const std::vector<uint64_t> wrong = WrongBytes(Behavior::kPartial, {OrderPlan()}, &found);
  EXPECT_GT(found.early, found.writes / 2);
  EXPECT_GT(found.corrupt, 0u);
  EXPECT_EQ(found.misordered + found.repeated + found.missing, 0u) << found.first;
  EXPECT_EQ(wrong, std::vector<uint64_t>{found.faults()});
  EXPECT_NE(found.first.find("bytes that were written before it"), std::string::npos);
}

TEST(MeasureTest, NotificationsThatOvertakeOthersOrComeTwiceAreFound) {
  Found found;
  const std::vector<uint64_t> wrong = WrongBytes(Behavior::kOvertaking, {OrderPlan()}, &found);
  EXPECT_GT(found.misordered, 40u) << found.first;
  EXPECT_GT(found.repeated, 10u) << found.first;
  EXPECT_EQ(found.early + found.missing, 0u) << found.first;
  EXPECT_EQ(wrong, std::vector<uint64_t>{found.faults()});
}

}  // namespace
}  // namespace rdma_transport::fabric
