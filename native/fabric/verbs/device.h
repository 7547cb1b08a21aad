// The verbs fabric: peers behind InfiniBand or RoCE ports, over reliable connections.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/call_list.h"
#include "fabric/host/channel_table.h"
#include "fabric/host/sleeper.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/memory.h"

namespace rdma_transport::fabric::verbs {

// One port of one card. See Device for the contract.
//
// A port that is not active when it is opened is read once it is. Until then, channels cannot be
// opened. Channels ignore that their port goes down: if it returns soon, they lose nothing.
//
// The work of a turn is proportional to the channels that are active: completions name theirs, and
// channels that need anything else call for it (Attend()). What nobody calls for is looked for now
// and then: handlers that are gone, and peers that have been silent for long.
class VerbsDevice final : public Device, private ChannelDevice {
 public:
  // Opens all ports that the settings choose, one device for each: first those that can be used, in
  // the order of preference, then those that may be later.
  static Status OpenPorts(const Settings& settings, std::vector<std::unique_ptr<Device>>* devices);
  ~VerbsDevice() override;

  std::string Summary() const override { return "verbs by " + adapter_->port().Text(); }
  std::vector<PortReport> Ports() const override;
  bool Active() const override { return adapter_->active(); }
  Pace pace() const override;
  // Returns that of a port of this rate, in pieces of at most `most` bytes.
  static Pace PaceOf(double gigabits_per_second, uint64_t most);
  bool Usable() const override { return adapter_->Usable(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return size_t{2} << 20; }
  Status Adopt(Region* region) override;
  bool Imports() const override { return true; }
  Status Import(const DeviceMemory& memory, Access access,
                std::unique_ptr<Region>* region) override;
  MappedSpan MapOwn(const RemoteSpan&) override { return MappedSpan(); }
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override { sleeper_.Sleep(deadline); }
  void Wake() override { sleeper_.Wake(); }
  int WaitDescriptor() const override { return sleeper_.descriptor(); }

 private:
  static constexpr int kBatch = 32;  // completions taken per call

  explicit VerbsDevice(std::unique_ptr<Adapter> adapter)
      : adapter_(std::move(adapter)), memory_(adapter_.get()) {}
  Status Init(const Settings& settings);

  // ChannelDevice:
  Adapter& adapter() const override { return *adapter_; }
  RegisteredMemory& memory() const override { return memory_; }
  Nanos keepalive() const override { return keepalive_; }
  Nanos polled_at() const override { return polled_at_; }
  bool asleep() const override { return asleep_.load(); }
  void Attend(uint32_t tag) override { calls_.Add(tag); }
  void HandleDescriptors() override;

  Status CheckKnown() const;
  void OnRegionEnd(uint64_t key);
  void HandleAsyncEvent(const ibv_async_event& event, uint32_t tag);
  void ReadPort(bool tell);
  void ProbeAllSoon();
  void ProbePeers(Nanos now);
  bool CallAbandoned(size_t most);
  void ServiceCallers();
  int PollQueue(CompletionQueue* queue);
  bool ArmQueue(CompletionQueue* queue);
  int Route(const ibv_wc* completions, int count);
  Status PollError() const;
  void BreakQueue(CompletionQueue* queue, const Status& reason);
  void FailChannels(const CompletionQueue* queue, const Status& reason);

  const std::unique_ptr<Adapter> adapter_;
  mutable RegisteredMemory memory_;
  Nanos keepalive_ = 0;
  host::Sleeper sleeper_;
  std::atomic<bool> asleep_{false};
  Nanos descriptors_checked_ = 0;
  Nanos probed_ = 0;
  Nanos polled_at_ = 0;
  // Until the port is known: when to look at it again, and how long to wait after that.
  Nanos read_due_ = 0;
  Nanos read_delay_ = 0;
  std::string unread_;  // why it could not be used the last time
  // Completions found by ArmNotification(), for the next Poll().
  ibv_wc met_[kBatch];
  int met_count_ = 0;

  std::atomic<uint32_t> last_tag_{0};
  host::ChannelTable<uint32_t, std::weak_ptr<VerbsChannel>> channels_{[this] { ProbeAllSoon(); }};
  host::CallList<uint32_t> calls_;  // tags

  // Used only by the polling thread.
  std::vector<uint32_t> callers_;
  std::set<uint32_t> probed_often_;
  // When each channel is to be probed, the first on top.
  using Due = std::pair<Nanos, uint32_t>;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> probes_;
};

}  // namespace rdma_transport::fabric::verbs
