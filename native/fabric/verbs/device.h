// The verbs fabric: peers behind InfiniBand or RoCE ports, over reliable connections.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <queue>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/call_list.h"
#include "fabric/host/sleeper.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/channel.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/slow_calls.h"

namespace rdma_transport::fabric::verbs {

// See Device for the contract.
//
// The work of a turn is proportional to the channels that are active: completions name theirs, and
// channels that need anything else call for it (Attend()). What nobody calls for is looked for now
// and then: handlers that are gone, and peers that have been silent for long.
class VerbsDevice final : public Device, private ChannelDevice {
 public:
  static Status Create(const Settings& settings, std::unique_ptr<Device>* device);
  ~VerbsDevice() override;

  std::string Summary() const override;
  std::vector<PortReport> Ports() const override;
  bool Usable() const override { return adapter().Usable(); }
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

  VerbsDevice() = default;
  Status Init(const Settings& settings);

  // ChannelDevice:
  Adapter& adapter() const override { return *adapters_.front(); }
  std::vector<Adapter*> ports() const override;
  RegisteredMemory& memory() const override { return *memory_; }
  uint64_t chunk() const override { return chunk_; }
  uint64_t piece() const override { return piece_; }
  std::atomic<int>* lanes_of_writes() override { return &lanes_of_writes_; }
  std::atomic<int>* lanes_of_reads() override { return &lanes_of_reads_; }
  Nanos keepalive() const override { return keepalive_; }
  Nanos polled_at() const override { return polled_at_; }
  bool asleep() const override { return asleep_.load(); }
  void Attend(uint32_t tag) override { calls_.Add(tag); }
  void CallSlowly(std::function<void()> call) override { slow_calls_.Add(std::move(call)); }
  void ProbeAt(uint32_t tag, Nanos when) override { attempts_.push({when, tag}); }
  void HandleDescriptors() override;

  void OnRegionEnd(uint64_t key);
  void HandleEvents(Adapter* adapter);
  void HandleAsyncEvent(Adapter* adapter, const ibv_async_event& event, uint32_t tag);
  std::vector<std::shared_ptr<VerbsChannel>> Channels() const;
  void RefreshSnapshot();
  VerbsChannel* Known(uint32_t tag) const;
  VerbsChannel* Find(uint32_t tag);
  void ProbePeers(Nanos now);
  bool CallAbandoned(size_t most);
  void ServiceCallers();
  int PollQueue(Adapter* adapter, CompletionQueue* queue);
  bool ArmQueue(Adapter* adapter, CompletionQueue* queue);
  int Route(const ibv_wc* completions, int count);
  void OnPort(Adapter* adapter, bool active, const std::string& sentence);
  // Ports that were not active at first, in device_standby.cc.
  void WakeStandby();
  void TryStandby(Nanos now);
  void ReadStandby(Adapter* adapter);
  size_t KnownPorts() const;
  void FailPort(Adapter* adapter, const Status& reason);

  std::vector<std::unique_ptr<Adapter>> adapters_;  // in the order of preference
  std::unique_ptr<RegisteredMemory> memory_;
  uint64_t chunk_ = 0;
  uint64_t piece_ = 0;
  std::atomic<int> lanes_of_writes_{0};
  std::atomic<int> lanes_of_reads_{0};
  Nanos keepalive_ = 0;
  host::Sleeper sleeper_;
  std::atomic<bool> asleep_{false};
  Nanos descriptors_checked_ = 0;
  Nanos probed_ = 0;
  Nanos polled_at_ = 0;
  // Completions found by ArmNotification(), for the next Poll().
  ibv_wc met_[kBatch];
  int met_count_ = 0;

  mutable std::mutex channels_mu_;
  std::map<uint32_t, std::weak_ptr<VerbsChannel>> channels_;  // by tag
  uint32_t next_tag_ = kMaxQueuePairs;
  std::atomic<uint64_t> channels_version_{0};
  host::CallList<uint32_t> calls_;  // tags

  // Used only by the polling thread: its copy of the channels, and what it knows of them.
  std::unordered_map<uint32_t, std::shared_ptr<VerbsChannel>> snapshot_;
  uint64_t snapshot_version_ = ~uint64_t{0};
  std::vector<VerbsChannel*> in_turn_;  // those of the snapshot
  size_t next_in_turn_ = 0;
  std::vector<uint32_t> callers_;
  std::set<uint32_t> probed_often_;
  // When each channel is to be probed, the first on top.
  using Due = std::pair<Nanos, uint32_t>;
  using Schedule = std::priority_queue<Due, std::vector<Due>, std::greater<>>;
  Schedule probes_;
  Schedule attempts_;  // additional ones, once, by ProbeAt()

  SlowCalls slow_calls_{"rdma_connect"};

  // A thread prepares the ports that have become active, one at a time, because it may take long to
  // register all memory.
  std::thread standby_;
  std::atomic<bool> stop_{false};
  std::atomic<Adapter*> prepared_{nullptr};  // by the thread, which then has ended
  Adapter* preparing_ = nullptr;
  Nanos standby_due_ = 0;  // when to try again
  Nanos standby_delay_ = 0;
  std::string standby_reason_;  // why the last one could not be used; used by the thread
};

}  // namespace rdma_transport::fabric::verbs
