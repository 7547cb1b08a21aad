// A fabric without a peer: the fuzzer plays the peer. It hands notifications to the handler, sees
// what is sent, and decides how transfers end. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "fabric/fabric.h"

namespace rdma_transport::fuzz {

// How the channels of a device behave.
struct Manners {
  bool maps = true;      // as shared memory does; otherwise as a card
  bool refuses = false;  // Notify() finds no room
};

class ScriptedChannel final : public fabric::Channel {
 public:
  // From the heap, so that the sanitizer sees what is read beside it.
  struct PeerMemory {
    explicit PeerMemory(size_t bytes);
    ~PeerMemory();
    PeerMemory(const PeerMemory&) = delete;
    PeerMemory& operator=(const PeerMemory&) = delete;
    char* const data;
    const size_t length;
  };
  using Memory = std::shared_ptr<PeerMemory>;

  ScriptedChannel(class ScriptedDevice* device, std::weak_ptr<fabric::ChannelHandler> handler)
      : device_(device), handler_(std::move(handler)) {}

  std::string Address() const override { return "scripted"; }
  Status Connect(std::string_view, fabric::Role, const fabric::Terms&) override;
  Status Share(uint64_t key) override;
  bool Locate(const void* data, fabric::RemoteSpan* span) const override;
  const char* fabric() const override { return "scripted"; }
  std::string Route() const override { return "nowhere"; }
  bool MapsPeer() const override;
  bool Copies() const override { return MapsPeer(); }
  Status Notify(const iovec* parts, int count, fabric::Urgency urgency, uint64_t* number,
                fabric::After after) override;
  fabric::Backlog backlog() const override { return {}; }
  Status Read(const fabric::RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const fabric::RemoteSpan& destination, uint64_t cookie) override;
  fabric::MappedSpan Map(const fabric::RemoteSpan& span) override;
  bool Owns(const void* data, fabric::RemoteSpan* span) const override;
  void Close(const Status& reason) override;

  // The fuzzer's.
  // Sees each notification, before Notify() returns.
  std::function<void(std::string_view bytes)> on_notify;
  // Memory of the peer.
  void AddRegion(uint64_t key, size_t length) {
    regions_[key] = std::make_shared<PeerMemory>(length);
  }
  // Ends the oldest transfer. False: there is none.
  bool EndTransfer(const Status& status);
  bool closed() const { return closed_; }
  std::shared_ptr<fabric::ChannelHandler> handler() const { return handler_.lock(); }
  // Notifications so far.
  uint64_t notified() const { return notified_; }
  // Tells the handler of the end, once; of a peer that may live also that it let go.
  void FinishClose(const Status& status);

 private:
  struct Transfer {
    fabric::RemoteSpan span;
    char* destination = nullptr;  // of a read
    uint64_t cookie = 0;
  };
  char* Find(const fabric::RemoteSpan& span, Memory* memory);

  ScriptedDevice* const device_;
  const std::weak_ptr<fabric::ChannelHandler> handler_;
  std::map<uint64_t, Memory> regions_;
  std::deque<Transfer> transfers_;
  uint64_t notified_ = 0;
  bool closed_ = false;
  bool finished_ = false;
};

class ScriptedDevice final : public fabric::Device {
 public:
  explicit ScriptedDevice(const Manners& manners) : manners_(manners) {}

  std::string Summary() const override { return "scripted"; }
  bool Usable() const override { return true; }
  Status Reaches(std::string_view) const override { return OkStatus(); }
  Status Allocate(size_t length, fabric::Access access, void* place,
                  std::unique_ptr<fabric::Region>* region) override;
  size_t RegionGranule() const override { return size_t{2} << 20; }
  Status Adopt(fabric::Region*) override { return OkStatus(); }
  fabric::MappedSpan MapOwn(const fabric::RemoteSpan& span) override;
  bool Locate(const void* data, fabric::RemoteSpan* span) const override;
  Status Open(std::weak_ptr<fabric::ChannelHandler> handler,
              std::shared_ptr<fabric::Channel>* channel) override;
  int Poll() override { return 0; }
  bool ArmNotification() override { return true; }
  void Sleep(Nanos) override {}
  void Wake() override {}
  int WaitDescriptor() const override { return -1; }

  Manners& manners() { return manners_; }
  // The last one that was opened.
  const std::shared_ptr<ScriptedChannel>& channel() const { return channel_; }
  // Called with each new channel.
  std::function<void(ScriptedChannel* channel)> on_open;

 private:
  Manners manners_;
  uint64_t last_key_ = 0;
  std::map<uint64_t, fabric::Region*> regions_;
  std::shared_ptr<ScriptedChannel> channel_;
};

}  // namespace rdma_transport::fuzz
