// Combines several fabrics into one device. All fabrics share the same regions; each channel uses
// the first fabric, in order of preference, that reaches its peer. One on which channels to a peer
// do not come up is avoided for a while, by both: each address tells whom its end avoids.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "fabric/avoided.h"
#include "fabric/fabric.h"

namespace rdma_transport::fabric {

// An opened fabric. `name` identifies it in channel addresses.
struct Member {
  std::string name;
  std::unique_ptr<Device> device;
};

// A fabric that could not be opened, and the reason.
struct Absent {
  std::string name;
  Status reason;
};

// See Device for the contract.
class CombinedDevice final : public Device {
 public:
  // `members` must not be empty and is in order of preference; the first member allocates all
  // regions. `absent` is for error messages to peers and users.
  CombinedDevice(std::vector<Member> members, std::vector<Absent> absent)
      : members_(std::move(members)), absent_(std::move(absent)) {}

  std::string Summary() const override;
  std::vector<PortReport> Ports() const override;
  bool Usable() const override { return members_.front().device->Usable(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return members_.front().device->RegionGranule(); }
  Status Adopt(Region* region) override;
  bool Imports() const override;
  Status Import(const DeviceMemory& memory, Access access,
                std::unique_ptr<Region>* region) override;
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

  struct Choice {
    size_t member = 0;
    std::string_view address;     // the peer's, on that member
    std::vector<size_t> refused;  // better members, which how the processes were started rules out
    std::string reasons;          // why, for users
    std::string peer;             // its ID, or empty
  };
  // Chooses the first member that both sides have, that reaches the peer and that neither avoids.
  // Returns Unavailable if there is none, FailedPrecondition if that may change.
  Status Choose(std::string_view address, const Avoided::Lists& avoided, Choice* choice) const;
  Avoided::Lists AvoidedNow() const { return avoided_.List(members_.size(), Now()); }
  // Returns a handler that tells whether the channel came up, and lives as long as `handler`.
  std::shared_ptr<class Watcher> Watch(const std::shared_ptr<ChannelHandler>& handler);

  const std::vector<Member> members_;
  const std::vector<Absent> absent_;
  const std::string id_ = RandomBytes(Avoided::kIdLength);
  Avoided avoided_;
  std::mutex watchers_mu_;
  std::vector<std::pair<std::weak_ptr<ChannelHandler>, std::shared_ptr<class Watcher>>> watchers_;
};

}  // namespace rdma_transport::fabric
