// One device over several: large transfers of a channel are divided over plain channels of all of
// them, its rails, and it goes on when one of them fails. Also for a single rail, whose small
// transfers then need not wait for large ones.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/host/call_list.h"
#include "fabric/host/channel_table.h"
#include "fabric/host/sleeper.h"
#include "fabric/host/slow_calls.h"
#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {

struct StripedSettings {
  size_t most_rails = kMaxRails;  // of a channel
  Nanos peer_timeout = 30 * kSecond;
};

// See Device for the contract.
class StripedDevice final : public Device, private ChannelDevice {
 public:
  // `rails` must not be empty; the first ones are preferred. The first one that can allocates a
  // region, under a key that no other has. A region lives on the rails that take it.
  // `name` is that of the fabric. Returns an error if the process has no descriptors left.
  static Status Create(std::string name, std::vector<std::unique_ptr<Device>> rails,
                       const StripedSettings& settings, std::unique_ptr<Device>* device);

  ~StripedDevice() override;

  std::string Summary() const override;
  std::vector<PortReport> Ports() const override;
  bool Usable() const override { return rails_.front()->Usable(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return rails_.front()->RegionGranule(); }
  Status Adopt(Region* region) override;
  bool Imports() const override;
  Status Import(const DeviceMemory& memory, Access access,
                std::unique_ptr<Region>* region) override;
  MappedSpan MapOwn(const RemoteSpan& span) override { return rails_.front()->MapOwn(span); }
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override;
  void Wake() override;
  int WaitDescriptor() const override;

 private:
  StripedDevice(std::string name, std::vector<std::unique_ptr<Device>> rails,
                const StripedSettings& settings)
      : name_(std::move(name)),
        rails_(std::move(rails)),
        settings_(settings),
        failed_at_(rails_.size()) {}

  // ChannelDevice:
  const std::string& name() const override { return name_; }
  const std::vector<std::unique_ptr<Device>>& rails() const override { return rails_; }
  std::vector<std::pair<Device*, bool>> ordered_rails() const override;
  void NoteFailure(const Device* device) override;
  size_t most_rails() const override { return settings_.most_rails; }
  Nanos peer_timeout() const override { return settings_.peer_timeout; }
  std::atomic<int>* lanes_of_writes() override { return &lanes_of_writes_; }
  std::atomic<int>* lanes_of_reads() override { return &lanes_of_reads_; }
  void Attend(std::weak_ptr<StripedChannel> channel) override;
  void CallSlowly(std::function<void()> call) override { slow_calls_.Add(std::move(call)); }

  bool CallAbandoned(size_t most);
  void LookAtPorts();

  const std::string name_;
  const std::vector<std::unique_ptr<Device>> rails_;
  const StripedSettings settings_;
  std::atomic<int> lanes_of_writes_{0};
  std::atomic<int> lanes_of_reads_{0};
  host::Sleeper sleeper_;  // if there are several rails
  host::SlowCalls slow_calls_{"rdma_rails"};
  std::vector<std::atomic<Nanos>> failed_at_;  // by rail; 0: never
  std::atomic<bool> asleep_{false};
  host::CallList<std::weak_ptr<StripedChannel>> calls_;

  using Weak = std::weak_ptr<StripedChannel>;
  host::ChannelTable<const void*, Weak, Weak> channels_;

  // The polling thread's.
  std::vector<Weak> callers_;
  Nanos served_ = 0;
  uint32_t polls_ = 0;
  uint32_t active_ = 0;  // a bit for each rail
  size_t first_ = 0;     // the rail that is polled first
};

}  // namespace rdma_transport::fabric::striped
