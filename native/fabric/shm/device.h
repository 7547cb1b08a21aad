// The shared-memory fabric: peers on this host that run as the same user.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/settings.h"
#include "fabric/fabric.h"
#include "fabric/host/call_list.h"
#include "fabric/host/channel_table.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/host/region.h"
#include "fabric/host/region_table.h"
#include "fabric/shm/channel.h"

namespace rdma_transport::fabric::shm {

// See Device for the contract.
//
// The polling thread looks in each turn only at the channels that are active. A channel that has
// been idle for a moment keeps its flag raised, as all do while the thread sleeps, so its peer
// sends a message over the socket with the next notification. The socket tells the channel.
class ShmDevice final : public Device, private ChannelDevice {
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
  bool ArmNotification() override;
  void Sleep(Nanos deadline) override;
  void Wake() override;
  int WaitDescriptor() const override { return epoll_.get(); }

 private:
  // A connection that has not yet sent its first message.
  struct PendingConnection {
    host::FileDescriptor socket;
    pid_t process;
    Nanos since;
  };

  ShmDevice() = default;
  Status Init();

  // ChannelDevice:
  uint64_t id() const override { return id_; }
  const std::string& socket_name() const override { return socket_name_; }
  bool Asleep() const override { return asleep_.load(); }
  bool Foreign() const override;
  bool FindRegion(uint64_t key, uint64_t* length, Access* access, int* fd) const override;
  Status Watch(ShmChannel* channel, int socket) override;
  void Unwatch(int socket) override;
  void WatchForRoom(ShmChannel* channel, int socket, bool on) override;
  void Attend(ShmChannel* channel) override { calls_.Add(channel); }
  void Remove(ShmChannel* channel) override { channels_.Remove(channel); }

  Status AddToEpoll(int fd, void* tag);
  void HandleSockets();
  void HandleEvent(void* tag, uint32_t events);
  void AcceptConnections();
  bool AcceptConnection();
  void PauseListening();
  void ResumeListening();
  void HandleConnection(std::list<PendingConnection>::iterator connection);
  void DropConnection(std::list<PendingConnection>::iterator connection);
  void SetFlags(bool asleep);
  std::shared_ptr<ShmChannel> Expected(std::string_view greeting) const;
  void OnRegionDestroyed(uint64_t key);
  void ListActive();
  void Activate(ShmChannel* channel);
  void ActivateCallers();
  void LetIdle();
  bool HasWork();

  int generation_ = 0;
  uint64_t id_ = 0;  // random; never 0
  Owner self_;
  std::string socket_name_;
  host::FileDescriptor listener_;
  host::FileDescriptor epoll_;
  host::FileDescriptor event_;         // signaled by Wake()
  host::FileDescriptor resume_timer_;  // runs while the listener is paused
  std::atomic<bool> asleep_{false};
  Nanos sockets_checked_ = 0;
  std::atomic<bool> woken_{false};  // a Sleep() was ended by an event that is not handled yet

  host::ChannelTable<const void*, std::weak_ptr<ShmChannel>> channels_{[this] { ListActive(); }};
  host::CallList<ShmChannel*> calls_;
  // Used only by the polling thread: those of its copy that are active.
  std::vector<ShmChannel*> active_;
  std::vector<ShmChannel*> callers_;
  Nanos let_idle_ = 0;  // when LetIdle() was called last

  std::list<PendingConnection> pending_;  // oldest first
  LogLimiter refusals_{LogLevel::kWarning};

  host::RegionTable regions_;  // all are host::MemoryRegion
  std::mutex own_views_mu_;
  std::map<uint64_t, std::shared_ptr<Mapping>> own_views_;
};

}  // namespace rdma_transport::fabric::shm
