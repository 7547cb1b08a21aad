// A decorator around any fabric: what goes through it is delayed, refused, lost and broken off as
// Faults says, never beyond what fabric.h allows, and both sides' manners are checked: violations
// of fabric.h by the protocol or by the fabric are kept in Violations.
//
// It lives here, and not in native/, because nothing but tests may link it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fabric/fabric.h"
#include "faulty_fabric/faults.h"

namespace rdma_transport::testing {

class FaultyChannel;

// Both ends of a channel must be of such devices, with the same Faults::card.
class FaultyDevice final : public fabric::Device {
 public:
  FaultyDevice(std::unique_ptr<fabric::Device> inner, const Faults& faults)
      : inner_(std::move(inner)), dice_(faults) {}
  ~FaultyDevice() override;

  // Before it is used.
  std::string Summary() const override { return "faulty " + inner_->Summary(); }
  bool Usable() const override { return inner_->Usable(); }
  bool Active() const override { return active_.load(); }
  fabric::Pace pace() const override { return dice_.faults().pace; }
  Status Reaches(std::string_view address) const override { return inner_->Reaches(address); }
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override;
  size_t RegionGranule() const override { return inner_->RegionGranule(); }
  Status Adopt(fabric::Region* region) override;
  fabric::MappedSpan MapOwn(const fabric::RemoteSpan& span) override;
  bool Locate(const void* data, fabric::RemoteSpan* span) const override {
    return inner_->Locate(data, span);
  }
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override;
  void Wake() override { inner_->Wake(); }
  int WaitDescriptor() const override { return inner_->WaitDescriptor(); }

  // For tests.
  Dice& dice() { return dice_; }
  // All channels break at the next Poll().
  void BreakAll(const Status& reason);
  // What Active() returns, and whether channels can be opened.
  void set_active(bool active) { active_.store(active); }
  // Moments at which a channel broke, or its end was told.
  uint64_t breaks() const { return breaks_.load(); }

  // For channels.
  fabric::Device* inner() { return inner_.get(); }
  bool OnPollingThread() const { return poller_.load() == std::this_thread::get_id(); }
  void CountBreak() { breaks_.fetch_add(1); }

 private:
  void MayStall();
  std::vector<std::shared_ptr<FaultyChannel>> Channels();

  const std::unique_ptr<fabric::Device> inner_;
  Dice dice_;
  std::atomic<std::thread::id> poller_{};
  std::atomic<uint64_t> breaks_{0};
  std::atomic<bool> active_{true};
  int stalls_ = 0;  // the polling thread's
  std::mutex mu_;
  std::vector<std::weak_ptr<FaultyChannel>> channels_;
};

}  // namespace rdma_transport::testing
