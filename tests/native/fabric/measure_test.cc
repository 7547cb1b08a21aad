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
class LossyChannel final : public Channel {
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
  void Authenticate(std::string key) override { channel_->Authenticate(std::move(key)); }
  Status Connect(std::string_view peer, Role role) override {
    return channel_->Connect(peer, role);
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

 private:
  const std::shared_ptr<Channel> channel_;
};

class LossyDevice final : public Device {
 public:
  explicit LossyDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override {
    std::shared_ptr<Channel> whole;
    RDMA_RETURN_IF_ERROR(device_->Open(std::move(handler), &whole));
    *channel = std::make_shared<LossyChannel>(std::move(whole));
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
};

std::unique_ptr<Device> OpenOne(bool lossy) {
  std::unique_ptr<Device> device;
  const Status opened = OpenDevice(testing::FabricSettings(), &device);
  EXPECT_TRUE(opened.ok()) << opened.message();
  if (lossy) device = std::make_unique<LossyDevice>(std::move(device));
  return device;
}

// What was wrong in each of the plans, which run one after the other.
std::vector<uint64_t> WrongBytes(bool lossy, const std::vector<Plan>& plans) {
  const std::unique_ptr<Device> devices[2] = {OpenOne(lossy), OpenOne(/*lossy=*/false)};
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
      EXPECT_EQ(WrongBytes(false, AllTests(bytes, iterations)), std::vector<uint64_t>(6, 0))
          << bytes << " bytes, " << iterations << " iterations";
    }
  }
}

// Of what each test compares, in the order of AllTests().
const std::vector<uint64_t> kOneEach = {kComparedNotes, 1, 1, 1, 1, kComparedNotes};

TEST(MeasureTest, OneWrongByteOfManyIsCounted) {
  for (const uint64_t bytes : {uint64_t{64}, uint64_t{4099}, kLargest}) {
    EXPECT_EQ(WrongBytes(true, AllTests(bytes, 300)), kOneEach) << bytes;
  }
}

// A place that an earlier turn left right must not make this one right.
TEST(MeasureTest, EachTurnIsComparedForItself) {
  std::vector<Plan> plans = AllTests(4099, 20);
  const std::vector<Plan> again = plans;
  plans.insert(plans.end(), again.begin(), again.end());
  std::vector<uint64_t> wrong = kOneEach;
  wrong.insert(wrong.end(), kOneEach.begin(), kOneEach.end());
  EXPECT_EQ(WrongBytes(true, plans), wrong);
}

}  // namespace
}  // namespace rdma_transport::fabric
