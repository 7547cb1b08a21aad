// A fabric reaches peers with one-sided operations. This is all that the layers above know of it.
//
// A Device registers memory and opens channels; a Channel is an ordered connection to one peer.
// Whoever bootstraps a connection exchanges the two channels' addresses and calls Connect() on
// both.
//
// Threads: every call may come from any thread, unless it says otherwise. ChannelHandler is called
// from whichever thread calls Device::Poll(), and only from there, with no lock held.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace rdma_transport::fabric {

enum class Access : uint8_t {
  kRemoteRead,       // peers may read
  kRemoteReadWrite,  // peers may read and write
};

// Registered memory of this process. Destruction takes it away from new readers; pages that a peer
// has mapped stay readable there until the peer drops its mapping.
class Region {
 public:
  virtual ~Region() = default;

  char* address() const { return address_; }
  size_t length() const { return length_; }
  uint64_t key() const { return key_; }
  Access access() const { return access_; }

  // `hook` hears the key while the memory is still there. Not thread-safe: for whoever makes it.
  void BeforeEnd(std::function<void(uint64_t key)> hook) { hooks_.push_back(std::move(hook)); }

 protected:
  void RunHooks() {
    for (const auto& hook : hooks_) hook(key_);
    hooks_.clear();
  }

  char* address_ = nullptr;
  size_t length_ = 0;
  uint64_t key_ = 0;
  Access access_ = Access::kRemoteRead;

 private:
  std::vector<std::function<void(uint64_t)>> hooks_;
};

// A stretch of a region, as another process names it.
struct RemoteSpan {
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// What a mapped span looks like here. The memory stays readable while `holder` lives.
struct MappedSpan {
  const char* data = nullptr;
  std::shared_ptr<const void> holder;
};

class ChannelHandler {
 public:
  virtual ~ChannelHandler() = default;

  virtual void OnConnected() = 0;
  // One notification, in the order in which the peer sent them. `data` is valid during the call.
  virtual void OnNotify(const char* data, size_t length) = 0;
  // All notifications up to this number need not be sent again: they have certainly reached the
  // peer, or it has died.
  virtual void OnDelivered(uint64_t /*number*/) {}
  // A Read() or Write() ended; `cookie` is the caller's.
  virtual void OnTransfer(uint64_t cookie, const Status& status) = 0;
  // Nothing comes any more. Unavailable: the peer reads and writes nothing here any more, and this
  // is the last call. Any other code: the peer may live, read what it has mapped and write into
  // what it was given, until OnReleased().
  virtual void OnClosed(const Status& status) = 0;
  virtual void OnReleased() {}
};

// Whether a sleeping peer is woken for a notification, or finds it when it next looks.
enum class Urgency { kWake, kLazy };

// As the cookie of a Write(): its end need not be told, where the processor copies.
constexpr uint64_t kNobodyWaits = ~uint64_t{0};

// Where notifications wait for a peer that has not taken them yet, in bytes.
struct Backlog {
  uint64_t ring_bytes = 0;     // the room that the peer gave
  uint64_t used_bytes = 0;     // of it; word of what was taken comes late, by a quarter at most
  uint64_t waiting_bytes = 0;  // in this process, for room
};

// Which side of the bootstrap this is: the asked task is passive, the asking one active.
enum class Role { kActive, kPassive };

class Channel {
 public:
  virtual ~Channel() = default;

  // What the peer must know to connect; opaque bytes.
  virtual std::string Address() const = 0;
  // Before Connect(): a key that nobody but the two ends can know. Each shows the other first that
  // it has it, and the addresses, without showing them. Without a key the addresses alone count.
  virtual void Authenticate(std::string key) = 0;
  // Connects to the channel whose Address() is given. Success means "under way":
  // OnConnected() or OnClosed() follows. Unavailable: that address cannot be reached from here.
  // Aborted: the channel was closed before. Once.
  virtual Status Connect(std::string_view peer_address, Role role) = 0;

  // Lets the peer reach the device's region of that key. Must come before the first notification
  // that names it; sharing again costs little.
  virtual Status Share(uint64_t key) = 0;
  // Whether `data` can be the local end of an operation of this channel, or be named to the peer:
  // where it lies, and what is left of the region from there.
  virtual bool Locate(const void* data, RemoteSpan* span) const = 0;

  // What it became; settled once Connect() has succeeded.
  // "shm", "verbs".
  virtual const char* fabric() const = 0;
  // How it reaches the peer, for people: "same host".
  virtual std::string Route() const = 0;
  // Whether Map() shows the peer's memory here.
  virtual bool MapsPeer() const = 0;
  // Whether the processor copies what Read() and Write() move: then the local end may lie anywhere,
  // and Write() has read it when it returns. Otherwise it must lie in a region of the device, and
  // stay as it is until OnTransfer().
  virtual bool Copies() const = 0;

  // Delivers the concatenated parts after all earlier writes and notifications of this channel.
  // Never blocks: what the peer has no room for is kept, up to a limit (ResourceExhausted). It may
  // be lost although both processes live, when the channel ends; OnDelivered() tells what was not.
  // `number` gets the place of this one in the order of all notifications, from 1.
  virtual Status Notify(const iovec* parts, int count, Urgency urgency,
                        uint64_t* number = nullptr) = 0;
  // What OnDelivered() would tell by now, as far as that is known without polling.
  virtual uint64_t Delivered() const { return 0; }
  // Any thread, also before and after the connection.
  virtual Backlog backlog() const = 0;
  // Of this and Write(), where MapsPeer(): the polling thread must have called Map() for the
  // region, when the peer's word of it had come. Otherwise that word may lie unread.
  virtual Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) = 0;
  // May wait for the next Notify() of this channel, or for Flush(), before it leaves. A write whose
  // destination is refused at once is not under way: no OnTransfer() follows. PermissionDenied: the
  // peer shared that region for reads only.
  virtual Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) = 0;
  virtual Status Flush() { return OkStatus(); }

  // The peer's memory in this address space, read-only; empty where the fabric cannot.
  // Call from the polling thread.
  virtual MappedSpan Map(const RemoteSpan& span) = 0;
  // While it lives, the peer hears no OnReleased(), as while a MappedSpan of Map() does. For what
  // else the peer must leave as it is.
  virtual std::shared_ptr<const void> Hold() const { return nullptr; }
  // Whether `data` lies in memory of the peer that Map() showed here, and which.
  virtual bool Owns(const void* data, RemoteSpan* span) const = 0;

  // Tells the peer the reason; OnClosed() follows on both sides.
  virtual void Close(const Status& reason) = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // What there is, for people: "shm; verbs by mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)".
  virtual std::string Summary() const = 0;
  // False in a process that was forked from the one that opened the device.
  virtual bool Usable() const = 0;
  // Whether a channel of this device can reach the one whose Address() is given; otherwise why not.
  virtual Status Reaches(std::string_view channel_address) const = 0;

  // New registered memory, at `place` (an address range that the caller reserved) or anywhere if
  // null. `length` must be a multiple of RegionGranule().
  virtual Status Allocate(size_t length, Access access, void* place,
                          std::unique_ptr<Region>* region) = 0;
  virtual size_t RegionGranule() const = 0;
  // Lets peers of this device reach a region that another device allocated, under the same key.
  virtual Status Adopt(Region* region) = 0;
  // This process's own memory as a peer would see it: a second, read-only view.
  virtual MappedSpan MapOwn(const RemoteSpan& span) = 0;
  // Whether `data` lies in a region of this device, or in such a second view, and where.
  virtual bool Locate(const void* data, RemoteSpan* span) const = 0;

  // A channel whose handler is gone closes.
  virtual Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) = 0;

  // Handles what has come; returns how much that was. One thread at a time.
  virtual int Poll() = 0;
  // By the polling thread: from now on, until the next Poll(), whatever comes ends a Sleep().
  // False: something has come already.
  virtual bool ArmNotification() = 0;
  // By any thread, any number of them: until something comes, Wake() is called or `deadline` passes
  // (0: none). May return for nothing.
  virtual void Sleep(Nanos deadline) = 0;
  virtual void Wake() = 0;
  // Readable when something has come since ArmNotification() said that nothing had.
  virtual int WaitDescriptor() const = 0;
};

// Whether `data` lies in memory that some channel or device mapped read-only into this process.
// A tensor there must never be written in place. Cheap: two comparisons.
bool IsMapped(const void* data);

}  // namespace rdma_transport::fabric
