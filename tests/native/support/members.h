// A group whose members are in this process, each with a device of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "collectives/group.h"
#include "collectives/mesh.h"
#include "fabric/combined.h"
#include "fabric/registry.h"
#include "fabrics.h"
#include "forwarding_device.h"

namespace rdma_transport::testing {

constexpr Nanos kSoon = 60 * kSecond;
constexpr Nanos kSpin = 20 * kMicrosecond;
constexpr Nanos kPeerTimeout = 20 * kSecond;

// The fabrics of a member, in order of preference. Members reach each other by those of the same
// name; "shm@first" and "shm@second" are shared memory of two hosts.
using FabricNames = std::vector<std::string>;

// Keeps its channels, in the order in which they were opened.
class RecordingDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override {
    const Status opened = ForwardingDevice::Open(std::move(handler), channel);
    if (opened.ok()) channels.push_back(*channel);
    return opened;
  }

  std::vector<std::weak_ptr<fabric::Channel>> channels;
};

// A device that a thread polls.
class PolledDevice {
 public:
  explicit PolledDevice(const FabricNames& names) {
    std::vector<fabric::Member> fabrics;
    for (const std::string& name : names) {
      for (const fabric::Registration& each : fabric::Fabrics()) {
        if (each.name != name.substr(0, name.find('@'))) continue;
        const Status status = each.create(FabricSettings(), &fabrics);
        EXPECT_TRUE(status.ok()) << status.message();
        if (status.ok()) fabrics.back().name = name;
      }
    }
    device_ = std::make_shared<RecordingDevice>(std::make_unique<fabric::CombinedDevice>(
        std::move(fabrics), std::vector<fabric::Absent>()));
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        std::unique_lock<std::mutex> polling(polling_);
        if (device_->Poll() != 0 || !device_->ArmNotification()) continue;
        polling.unlock();
        if (!stop_.load()) device_->Sleep(Now() + kSecond);  // Poll() may have taken the wake-up
      }
    });
  }
  ~PolledDevice() {
    stop_.store(true);
    device_->Wake();
    thread_.join();
  }
  const std::shared_ptr<RecordingDevice>& get() const { return device_; }
  // Polls for a thread that waits, as Mesh::PollWhileWaiting() wants it.
  void Help(const std::function<bool()>& done) {
    std::lock_guard<std::mutex> polling(polling_);
    for (const Nanos start = Now(); !done() && Now() - start < kSpin;) device_->Poll();
    if (!device_->ArmNotification()) device_->Wake();
  }

 private:
  std::shared_ptr<RecordingDevice> device_;
  std::mutex polling_;  // held by the thread that polls
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Thread-safe as its groups are.
class Members {
 public:
  explicit Members(int size)
      : Members(std::vector<FabricNames>(static_cast<size_t>(size), {FabricSettings().fabric})) {}
  // `spin`: how long groups spin before they sleep.
  explicit Members(const std::vector<FabricNames>& fabrics, Nanos spin = kSpin) {
    for (const FabricNames& names : fabrics) devices_.emplace_back(names);
    for (auto& mesh : Connect()) {
      groups.push_back(std::make_unique<collectives::Group>(std::move(mesh), spin));
    }
  }

  // Connects the members' devices once more.
  std::vector<std::unique_ptr<collectives::Mesh>> Connect() {
    const int size = static_cast<int>(devices_.size());
    std::vector<std::unique_ptr<collectives::Mesh>> meshes(size);
    for (int rank = 0; rank < size; ++rank) {
      const Status opened =
          collectives::Mesh::Open(devices_[rank].get(), rank, size, kPeerTimeout, &meshes[rank]);
      EXPECT_TRUE(opened.ok()) << opened.message();
      PolledDevice* const device = &devices_[rank];
      meshes[rank]->PollWhileWaiting(
          [device](const std::function<bool()>& done) { device->Help(done); });
    }
    for (int passive = size - 1; passive > 0; --passive) {
      for (int active = 0; active < passive; ++active) {
        Connect(&meshes, passive, active);
        Connect(&meshes, active, passive);
      }
    }
    for (auto& mesh : meshes) {
      const Status ready = mesh->WaitReady({Now() + kSoon, nullptr});
      if (!ready.ok()) throw std::runtime_error(ready.message());  // which ends the test
    }
    return meshes;
  }

  // Runs `what(rank)` in a thread for each rank, and returns the results.
  std::vector<Status> Each(const std::function<Status(int)>& what) const {
    std::vector<Status> results(groups.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      threads.emplace_back([&, rank] { results[rank] = what(static_cast<int>(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  fabric::Device* device(int rank) const { return devices_[rank].get().get(); }
  // Breaks the first connection of two members.
  void Cut(int rank, int peer) const {
    const auto& channels = devices_[rank].get()->channels;
    const auto channel = channels[peer < rank ? peer : peer - 1].lock();
    channel->Close(Status(Code::kUnavailable, "the cable was cut"));
  }

 private:
  static void Connect(std::vector<std::unique_ptr<collectives::Mesh>>* meshes, int from, int to) {
    const Status status = (*meshes)[from]->Connect(to, (*meshes)[to]->Address(from), "");
    EXPECT_TRUE(status.ok()) << status.message();
  }

  std::deque<PolledDevice> devices_;

 public:
  std::vector<std::unique_ptr<collectives::Group>> groups;  // destroyed before the devices
};

}  // namespace rdma_transport::testing
