// The shared-memory fabric: peers on the same host, under the same user.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/region.h"
#include "fabric/host/region_table.h"
#include "fabric/shm/channel.h"
#include "fabric/shm/doorbell.h"

namespace rdma_transport::fabric::shm {

class ShmDevice final : public Device {
 public:
  static Status Create(const Settings& settings, std::unique_ptr<Device>* device);
  ~ShmDevice() override;

  std::string Summary() const override { return "shm"; }
  bool Usable() const override { return !Foreign(); }
  Status Reaches(std::string_view channel_address) const override;
  Status Allocate(size_t length, Access access, void* place,
                  std::unique_ptr<Region>* region) override;
  size_t RegionGranule() const override { return Window::kGranule; }
  Status Adopt(Region* region) override;
  MappedSpan MapOwn(const RemoteSpan& span) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) override;
  int Poll() override;
  bool Rest() override;
  void Sleep(Nanos deadline) override;
  void Wake() override;
  int WaitDescriptor() const override { return epoll_.get(); }

  // For channels.
  uint64_t id() const { return id_; }
  const std::string& socket_name() const { return socket_name_; }
  Doorbell& doorbell() { return doorbell_; }
  bool FindRegion(uint64_t key, uint64_t* length, Access* access, int* fd) const;
  void Expect(ShmChannel* channel);
  Status Watch(ShmChannel* channel);
  void Unwatch(ShmChannel* channel);
  // Whether this device was opened by an ancestor of this process.
  bool Foreign() const;

 private:
  // A connection whose first message has not come yet.
  struct Stranger {
    host::FileDescriptor socket;
    Nanos since;
  };

  ShmDevice() = default;
  Status Init();
  Status AddToEpoll(int fd, void* tag);
  void HandleSockets();
  void AcceptStrangers();
  void HandleStranger(Stranger* stranger);
  void DropStranger(Stranger* stranger);
  std::shared_ptr<ShmChannel> TakeExpected(const std::string& token);
  void OnRegionDestroyed(uint64_t key);
  std::vector<std::shared_ptr<ShmChannel>> Channels() const;
  void RefreshSnapshot();
  bool HasWork();

  int generation_ = 0;
  uint64_t id_ = 0;  // random; never 0
  std::string socket_name_;
  host::FileDescriptor listener_;
  host::FileDescriptor epoll_;
  Doorbell doorbell_;
  Nanos sockets_checked_ = 0;
  std::atomic<bool> woken_{false};  // a Sleep() ended by an event that nobody has handled yet

  mutable std::mutex channels_mu_;
  std::vector<std::weak_ptr<ShmChannel>> channels_;
  std::atomic<uint64_t> channels_version_{0};
  // The polling thread's own copy of the channels.
  std::vector<std::shared_ptr<ShmChannel>> snapshot_;
  uint64_t snapshot_version_ = ~uint64_t{0};
  std::map<std::string, ShmChannel*> expected_;  // by token, under channels_mu_

  std::map<Stranger*, std::unique_ptr<Stranger>> strangers_;

  host::RegionTable regions_;  // of host::MemoryRegion
  std::mutex own_views_mu_;
  std::map<uint64_t, std::shared_ptr<Mapping>> own_views_;
};

}  // namespace rdma_transport::fabric::shm
