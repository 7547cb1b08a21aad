// The threads that poll a device share its events.
#include "protocol/poller.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/settings.h"
#include "forwarding_device.h"

namespace rdma_transport::testing {
namespace {

constexpr std::chrono::seconds kDeadline(20);

// Each event ends one call of Sleep(). The second one comes while the first one's thread prepares
// to sleep, and ends the sleep of a thread that cannot lead for that reason.
class OneByOneDevice final : public ForwardingDevice {
 public:
  OneByOneDevice() : ForwardingDevice(nullptr) {}

  int Poll() override {
    std::lock_guard<std::mutex> lock(mu_);
    const int handled = unhandled_;
    unhandled_ = 0;
    handled_ += handled;
    changed_.notify_all();
    return handled;
  }
  bool ArmNotification() override {
    std::unique_lock<std::mutex> lock(mu_);
    if (sent_ != 1) return true;
    SendLocked();
    const int calls = calls_;
    // The thread that took the event has come back.
    changed_.wait_for(lock, kDeadline, [&] { return events_ == 0 && calls_ > calls; });
    return true;
  }
  void Sleep(Nanos) override {
    std::unique_lock<std::mutex> lock(mu_);
    ++calls_;
    changed_.notify_all();
    const int wakes = wakes_;
    changed_.wait(lock, [&] { return events_ > 0 || wakes_ != wakes; });
    if (events_ > 0) --events_;
    changed_.notify_all();
  }
  void Wake() override {
    std::lock_guard<std::mutex> lock(mu_);
    ++wakes_;
    changed_.notify_all();
  }

  void Send() {
    std::lock_guard<std::mutex> lock(mu_);
    SendLocked();
  }
  bool Handles(int events) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, kDeadline, [&] { return handled_ == events; });
  }
  bool HasSleepers(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    return changed_.wait_for(lock, kDeadline, [&] { return calls_ >= count; });
  }

 private:
  void SendLocked() {
    ++sent_;
    ++events_;
    ++unhandled_;
    changed_.notify_all();
  }

  std::mutex mu_;
  std::condition_variable changed_;
  int sent_ = 0;
  int events_ = 0;     // which end a sleep each
  int unhandled_ = 0;  // events that no poll has found
  int handled_ = 0;
  int calls_ = 0;  // of Sleep()
  int wakes_ = 0;
};

TEST(PollerTest, AnEventIsNotLostByAThreadThatCannotLead) {
  OneByOneDevice device;
  Settings settings;
  settings.spin = 0;
  Poller poller(&device, settings, [](Nanos, bool) { return false; });
  ASSERT_TRUE(device.HasSleepers(3));
  device.Send();
  EXPECT_TRUE(device.Handles(2));
}

}  // namespace
}  // namespace rdma_transport::testing
