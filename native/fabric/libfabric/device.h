// The libfabric fabric: peers behind any network that a provider of libfabric serves, over one
// reliable-datagram endpoint.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/channel_table.h"
#include "fabric/libfabric/channel.h"
#include "fabric/libfabric/endpoint.h"
#include "fabric/libfabric/providers.h"

namespace rdma_transport::fabric::libfabric {

// The devices of one provider.
struct Rails {
  std::string name;                           // "libfabric/efa"
  std::vector<std::unique_ptr<Device>> nics;  // the preferred one first
};

// See Device for the contract.
class LibfabricDevice final : public Device {
 public:
  // Opens a device for each card, or interface, of each provider that FindProviders() returns; of
  // several cards, those that can be opened.
  static Status OpenNics(const Settings& settings, std::vector<Rails>* providers);
  ~LibfabricDevice() override;

  std::string Summary() const override;
  std::vector<PortReport> Ports() const override { return endpoint_.Ports(); }
  Pace pace() const override { return endpoint_.pace(); }
  bool Usable() const override { return domain().Usable(); }
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
  void Sleep(Nanos deadline) override { endpoint_.sleeper().Sleep(deadline); }
  void Wake() override { endpoint_.sleeper().Wake(); }
  int WaitDescriptor() const override { return endpoint_.sleeper().descriptor(); }

 private:
  LibfabricDevice() = default;
  Status Init(const Settings& settings, const std::string& provider, const fi_info& nic,
              std::shared_ptr<const Library> library);

  Domain& domain() const { return endpoint_.domain(); }
  void OnRegionEnd(uint64_t key);
  void Handle(const Completion& completion, Nanos now);
  void HandleMessage(const Operation& operation, size_t length, Nanos now);
  void PostReceives();
  void TakeCompletions();
  void Remove(const LibfabricChannel& channel);
  bool InUse() const { return !channels_.copy().empty() || in_use_until_ != 0; }
  void FailAll(const Status& reason);

  Endpoint endpoint_;
  std::string description_;
  Nanos probed_ = 0;
  Nanos served_ = 0;
  Nanos in_use_until_ = 0;            // after the last channel; 0 once it is over
  std::vector<Completion> ended_;     // to be handled by the next Poll()
  std::vector<Operation*> unposted_;  // receives

  // By number. A channel stays here until it has finished, even if its user has dropped it.
  host::ChannelTable<uint32_t, std::shared_ptr<LibfabricChannel>> channels_;
  std::atomic<uint32_t> last_number_{0};
};

}  // namespace rdma_transport::fabric::libfabric
