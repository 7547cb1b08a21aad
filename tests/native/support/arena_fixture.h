// Tests of arenas over shared memory, whose memory may take long to come.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>

#include "fabric/registry.h"
#include "forwarding_device.h"
#include "memory/arena.h"
#include "memory/slot_pools.h"

namespace rdma_transport::testing {

class ArenaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Settings settings;
    settings.fabric = "shm";
    ASSERT_TRUE(fabric::OpenDevice(settings, &device_).ok());
  }
  std::unique_ptr<fabric::Device> device_;
};

// A device whose memory takes as long to come as the test wants.
class SlowDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override {
    std::unique_lock<std::mutex> lock(mu_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
    --waiting_;
    lock.unlock();
    return ForwardingDevice::Allocate(length, access, place, region);
  }
  void SetOpen(bool open) {
    std::lock_guard<std::mutex> lock(mu_);
    open_ = open;
    changed_.notify_all();
  }
  void AwaitSomebody() {
    std::unique_lock<std::mutex> lock(mu_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return waiting_ > 0; }));
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool open_ = true;
  int waiting_ = 0;
};

class SlowArenaTest : public ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    slow_ = std::make_unique<SlowDevice>(std::move(device_));
    arena_ = std::make_unique<memory::Arena>(slow_.get(), uint64_t{256} << 20);
    pools_ = std::make_unique<memory::SlotPools>(arena_.get());
  }
  // While `grow` waits for memory, `rest` must be done with.
  void Meanwhile(const std::function<void()>& grow, const std::function<void()>& rest) {
    slow_->SetOpen(false);
    auto growing = std::async(std::launch::async, grow);
    slow_->AwaitSomebody();
    auto resting = std::async(std::launch::async, rest);
    EXPECT_EQ(resting.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    slow_->SetOpen(true);
    growing.get();
    resting.get();
  }

  std::unique_ptr<SlowDevice> slow_;
  std::unique_ptr<memory::Arena> arena_;
  std::unique_ptr<memory::SlotPools> pools_;
};

}  // namespace rdma_transport::testing
