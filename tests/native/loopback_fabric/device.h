// A fabric whose peers are all in this process. The CPU copies between the regions of both sides,
// while the sender calls. It shows what a fabric needs at least: this folder and one registration.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/fork_guard.h"
#include "fabric/host/region_table.h"

namespace rdma_transport::testing {

class LoopbackChannel;

// See Device for the contract.
class LoopbackDevice final : public fabric::Device {
 public:
  static Status Create(const Settings& settings, std::unique_ptr<fabric::Device>* device);

  std::string Summary() const override { return "loopback"; }
  bool Usable() const override { return generation_ == fabric::host::ForkGeneration(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override;
  size_t RegionGranule() const override { return size_t{2} << 20; }
  Status Adopt(fabric::Region* region) override;
  fabric::MappedSpan MapOwn(const fabric::RemoteSpan&) override { return {}; }
  bool Locate(const void* data, fabric::RemoteSpan* span) const override {
    return Usable() && regions_.Locate(data, span);
  }
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override;
  void Wake() override;
  int WaitDescriptor() const override { return wake_.get(); }

  // For channels.
  const fabric::host::RegionTable& regions() const { return regions_; }

 private:
  std::vector<std::shared_ptr<LoopbackChannel>> Channels();

  const int generation_ = fabric::host::ForkGeneration();
  fabric::host::FileDescriptor wake_;  // readable: there is an event
  fabric::host::RegionTable regions_;
  std::vector<std::weak_ptr<LoopbackChannel>> channels_;  // guarded by Mutex()
};

}  // namespace rdma_transport::testing
