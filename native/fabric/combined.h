// Several fabrics as one device: one memory that peers reach by whichever of them reaches the peer,
// the first in the order of preference.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// A fabric that was opened; its name is what addresses carry.
struct Member {
  std::string name;
  std::unique_ptr<Device> device;
};

// A fabric that could not be opened, and why.
struct Absent {
  std::string name;
  Status reason;
};

class CombinedDevice final : public Device {
 public:
  // `members`: at least one, the preferred first; the first one allocates. `absent` explains to
  // peers and people why another one is not taken.
  CombinedDevice(std::vector<Member> members, std::vector<Absent> absent)
      : members_(std::move(members)), absent_(std::move(absent)) {}

  std::string Summary() const override;
  bool Usable() const override { return members_.front().device->Usable(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return members_.front().device->RegionGranule(); }
  Status Adopt(Region* region) override;
  MappedSpan MapOwn(const RemoteSpan& span) override {
    return members_.front().device->MapOwn(span);
  }
  bool Locate(const void* data, RemoteSpan* span) const override {
    return members_.front().device->Locate(data, span);
  }
  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override;
  int Poll() override;
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override;
  void Wake() override { members_.front().device->Wake(); }
  int WaitDescriptor() const override { return -1; }

 private:
  friend class CombinedChannel;

  // The member that both sides have and that reaches the peer, and the peer's address on it.
  Status Choose(std::string_view address, size_t* member, std::string_view* inner) const;

  const std::vector<Member> members_;
  const std::vector<Absent> absent_;
};

}  // namespace rdma_transport::fabric
