// The libfabric fabric: peers behind any network that a provider of libfabric serves, over one
// reliable-datagram endpoint.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "fabric/combined.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/sleeper.h"
#include "fabric/libfabric/channel.h"
#include "fabric/libfabric/domain.h"
#include "fabric/libfabric/memory.h"
#include "fabric/libfabric/providers.h"

namespace rdma_transport::fabric::libfabric {

// The devices of one provider.
struct Rails {
  std::string name;                           // "libfabric/efa"
  std::vector<std::unique_ptr<Device>> nics;  // the preferred one first
};

// Returns how long the polling thread may sleep where nothing can wake it, after so long a silence:
// a sixty-fourth of it, so that no answer is late by more, between 20 microseconds and a
// millisecond.
Nanos BlindSleep(Nanos silence);

// See Device for the contract.
class LibfabricDevice final : public Device, private ChannelDevice {
 public:
  // Opens a device for each card, or interface, of each provider that FindProviders() returns; of
  // several cards, those that can be opened.
  static Status OpenNics(const Settings& settings, std::vector<Rails>* providers);
  static Status Create(const Settings& settings, std::vector<Member>* members);
  ~LibfabricDevice() override;

  std::string Summary() const override;
  bool Usable() const override { return domain_->Usable(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return size_t{2} << 20; }
  Status Adopt(Region* region) override;
  MappedSpan MapOwn(const RemoteSpan&) override { return MappedSpan(); }
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override { sleeper_.Sleep(deadline); }
  void Wake() override { sleeper_.Wake(); }
  int WaitDescriptor() const override { return sleeper_.descriptor(); }

 private:
  using Channels = std::unordered_map<uint64_t, std::shared_ptr<LibfabricChannel>>;
  struct Peer {
    fi_addr_t address;
    int channels;
  };

  LibfabricDevice() = default;
  Status Init(const Settings& settings, const std::string& provider, const fi_info& nic,
              std::shared_ptr<const Library> library);

  // ChannelDevice:
  Domain& domain() const override { return *domain_; }
  RegisteredMemory& memory() const override { return *memory_; }
  uint64_t chunk() const override { return chunk_; }
  uint32_t frames() const override { return frames_; }
  Nanos peer_timeout() const override { return peer_timeout_; }
  const Registration& mark() const override { return *mark_; }
  Frame mark_destination() const override { return mark_destination_; }
  Operation* NewOperation(Operation::Kind kind) override;
  void Return(Operation* operation) override;
  Status Reach(const std::string& name, fi_addr_t* peer) override;
  void Leave(const std::string& name) override;
  bool asleep() const override { return asleep_.load(); }
  void WakeSoon() override;
  void OnStarted() override;

  Status AddToQueueEvents(int fd);
  void OnRegionEnd(uint64_t key);
  std::vector<std::shared_ptr<LibfabricChannel>> Open() const;
  void RefreshSnapshot();
  std::shared_ptr<LibfabricChannel> Find(const Channels& channels, uint64_t key);
  void Handle(const Completion& completion, Nanos now);
  void HandleMessage(const Operation& operation, size_t length, Nanos now);
  void PostReceives();
  void TakeCompletions();
  void Forget(const LibfabricChannel& channel);
  bool InUse() const { return !by_number_.empty() || in_use_until_ != 0; }
  void FailAll(const Status& reason);
  void WatchBelowQueue();

  std::unique_ptr<Domain> domain_;
  std::unique_ptr<RegisteredMemory> memory_;
  std::string description_;
  uint64_t chunk_ = 0;
  uint32_t frames_ = 0;
  Nanos peer_timeout_ = 0;
  std::shared_ptr<Registration> mark_;
  Frame mark_destination_;
  // An epoll descriptor, readable when the completion queue has work. The sleeper watches it only
  // while the polling thread sleeps.
  host::FileDescriptor queue_events_;
  host::Sleeper sleeper_;
  std::atomic<bool> asleep_{false};
  bool armed_ = false;  // the sleeper watches queue_events_ once
  int fruitless_ = 0;   // times in a row that queue_events_ woke for no completion
  Nanos probed_ = 0;
  Nanos served_ = 0;
  std::atomic<Nanos> active_at_{0};   // the last start or end of an operation
  Nanos in_use_until_ = 0;            // after the last channel; 0 once it is over
  std::vector<Completion> ended_;     // to be handled by the next Poll()
  std::vector<Operation*> unposted_;  // receives

  std::mutex operations_mu_;
  std::deque<Operation> operations_;
  std::vector<Operation*> free_;

  std::mutex peers_mu_;
  std::map<std::string, Peer> peers_;  // by the name of the endpoint

  // A channel stays here until it has finished, even if its user has dropped it.
  mutable std::mutex channels_mu_;
  std::map<uint32_t, std::shared_ptr<LibfabricChannel>> channels_;  // by number
  uint32_t last_number_ = 0;
  std::atomic<uint64_t> channels_version_{0};
  // The polling thread's copies.
  Channels by_number_;
  Channels by_tag_;
  uint64_t snapshot_version_ = ~uint64_t{0};
};

}  // namespace rdma_transport::fabric::libfabric
