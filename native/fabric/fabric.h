// The interface of a fabric: one-sided access to memory of peers, and notifications.
//
// A Device registers memory and opens channels. A Channel is an ordered connection to one peer. To
// connect two channels, the bootstrap exchanges their addresses and calls Connect() on both.
//
// All functions are thread-safe unless noted. ChannelHandler is called only from the thread that
// calls Device::Poll(), with no lock held.
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
#include "base/owner_ref.h"
#include "base/status.h"

namespace rdma_transport::fabric {

// What peers may do with a region.
enum class Access : uint8_t {
  kRemoteRead,       // peers may read
  kRemoteReadWrite,  // peers may read and write
};

// Memory of this process that is registered with a device; the caller owns it and must destroy it
// before the device. Destruction revokes access, but pages that a peer has mapped stay readable
// there until the peer drops its mapping. All of it except the bytes is constant, so threads may
// share it.
class Region {
 public:
  virtual ~Region() = default;

  char* address() const { return address_; }
  size_t length() const { return length_; }  // in bytes
  // Identifies the region among those of its device.
  uint64_t key() const { return key_; }
  Access access() const { return access_; }

  // Calls `hook` with the key on destruction, on the thread that destroys the region and before the
  // memory is freed. Not thread-safe: call it before the region is shared between threads.
  void BeforeEnd(std::function<void(uint64_t key)> hook) { hooks_.push_back(std::move(hook)); }

 protected:
  // Calls the hooks. The destructor of each subclass must call it before it frees the memory.
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

// A byte range of a region, as peers name it. `offset` and `length` are in bytes.
struct RemoteSpan {
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Memory of an accelerator.
struct DeviceMemory {
  // The descriptor of a DMA-BUF that begins with the memory. -1: the kernel finds the memory by its
  // address, with a module such as nvidia_peermem.
  int file = -1;
  char* address = nullptr;  // the processor cannot access it
  size_t length = 0;        // in bytes
  std::string device;       // the accelerator's folder in sysfs; empty: not known
};

// Local, read-only view of a peer's memory. `data` is readable while `holder` exists; null if the
// memory cannot be mapped.
struct MappedSpan {
  const char* data = nullptr;
  std::shared_ptr<const void> holder;
};

// A region of the peer that this processor accesses in place: a read or a write is one copy, which
// takes no lock and ends when the call returns, without OnTransfer(). Thread-safe. It may outlive
// its channel; destroying the channel while another thread copies does not end that copy.
//
// Errors: InvalidArgument outside the region, PermissionDenied for a write to a region that the
// peer shared read-only, NotFound once the peer has released the region, Unavailable once the
// channel has closed. After OnClosed(), no copy is under way.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;

  // Offsets and lengths are in bytes.
  virtual Status Read(uint64_t offset, char* destination, uint64_t length) = 0;
  // A notification that is sent afterwards arrives after the bytes.
  virtual Status Write(const char* source, uint64_t offset, uint64_t length) = 0;
};

// Receives the events of one channel. All calls come from the polling thread, with no lock held, so
// they may call the channel. The channel holds only a weak reference and closes when the handler is
// destroyed.
class ChannelHandler {
 public:
  virtual ~ChannelHandler() = default;

  // The channel is connected, and the peer has proved that it knows the key and both addresses.
  // Called at most once.
  virtual void OnConnected() = 0;
  // Called once per notification, in an order that `After` allows. `data` is valid only during the
  // call.
  virtual void OnNotify(const char* data, size_t length) = 0;
  // All notifications up to this number have reached the peer, or the peer has died. They need not
  // be sent again. Numbers never decrease.
  virtual void OnDelivered(uint64_t /*number*/) {}
  // The Read() or Write() with this cookie has ended. The error is InvalidArgument for a span
  // outside the peer's regions; others are of the fabric, and the channel may close for them.
  virtual void OnTransfer(uint64_t cookie, const Status& status) = 0;
  // The channel has closed; no event other than OnReleased() follows, not even for transfers in
  // progress, which access no local memory any more, unless OutlivedByTransfers(). Unavailable: the
  // peer no longer accesses memory of this process, and OnReleased() is not called. Any other code:
  // until OnReleased(), the peer may read what it has mapped and write where it was allowed to.
  virtual void OnClosed(const Status& status) = 0;
  // The peer no longer accesses memory of this process. Follows OnClosed(), at most once.
  virtual void OnReleased() {}
};

// How soon a notification must reach the peer.
enum class Urgency {
  kWake,  // at once: it wakes a peer that sleeps
  // May be delayed until the sender's polling thread is about to sleep, or has polled for long.
  kLazy,
};

// What a notification follows, besides the earlier notifications that follow everything.
class After {
 public:
  // All earlier writes and notifications of the channel.
  static constexpr After Everything() { return After(Kind::kEverything, 0); }
  // The write with this cookie. The notification may overtake other writes, and the notifications
  // that follow those.
  static constexpr After Write(uint64_t cookie) { return After(Kind::kWrite, cookie); }
  // No write.
  static constexpr After Nothing() { return After(Kind::kNothing, 0); }

  constexpr bool IsEverything() const { return kind_ == Kind::kEverything; }
  constexpr bool IsNothing() const { return kind_ == Kind::kNothing; }
  constexpr uint64_t cookie() const { return cookie_; }

 private:
  enum class Kind { kEverything, kWrite, kNothing };
  constexpr After(Kind kind, uint64_t cookie) : kind_(kind), cookie_(cookie) {}

  Kind kind_;
  uint64_t cookie_;
};

// Cookie of a Write() whose completion is not needed. A channel with Copies() then skips
// OnTransfer().
constexpr uint64_t kNobodyWaits = ~uint64_t{0};

// Limit on the bytes of notifications that are queued while the peer's ring is full.
constexpr size_t kMaxQueued = size_t{256} << 20;
// Notifications up to this length are queued beyond it, so that queued data cannot make one fail
// that releases a buffer, reports an error, or proves that this process is alive.
constexpr size_t kAlwaysQueued = 1024;

// What a striped channel adds to a notification, at most.
constexpr size_t kMaxStripeHeader = 256;

// Returns ResourceExhausted unless a notification of `length` bytes may be queued behind `queued`.
inline Status CheckQueue(size_t length, size_t queued) {
  if (length <= kAlwaysQueued + kMaxStripeHeader || queued + length <= kMaxQueued) {
    return OkStatus();
  }
  return Status(Code::kResourceExhausted, "the peer does not take its notifications");
}

// The notifications that the peer has not consumed, at one moment, and how long one may be. All in
// bytes.
struct Backlog {
  uint64_t ring_bytes = 0;     // capacity of the ring through which they reach the peer
  uint64_t used_bytes = 0;     // of `ring_bytes`; may count up to a quarter too much
  uint64_t waiting_bytes = 0;  // queued in this process
  uint64_t longest = kMaxQueued;
};

// The side of the bootstrap that an end of a channel is on. The task that requests the connection
// is active, the other is passive.
enum class Role { kActive, kPassive };

// What the end of a Write() means.
enum class WriteEnd {
  kReusable,   // the source may change
  kLate,       // the same, told maybe a few milliseconds late, so that no polling thread is woken
  kDelivered,  // the bytes are in the peer's memory
};

// How two channels connect.
struct Terms {
  // Only the two ends know it. Each then proves to the other, without revealing them, that it knows
  // the key and both addresses. If it is empty, knowing the addresses suffices.
  std::string key;
  WriteEnd write_end = WriteEnd::kReusable;  // at this end
};

// An ordered connection to one peer. Functions that return a Status return Unavailable while the
// channel is not connected, unless noted. Destruction closes the channel without a call of the
// handler. Any thread may destroy it, but the device must outlive it.
class Channel {
 public:
  virtual ~Channel() = default;

  // --- Connection: each end passes its address to the other, and connects. ---

  // Returns what the peer passes to Connect(), as opaque bytes.
  virtual std::string Address() const = 0;
  // Starts to connect to the channel with this address; call it once. After success, OnConnected()
  // or OnClosed() follows. Returns Unavailable if no fabric reaches the address, or Aborted if the
  // channel has been closed.
  virtual Status Connect(std::string_view peer_address, Role role,
                         const Terms& terms = Terms()) = 0;
  // Closes the channel and sends `reason` to the peer. OnClosed() follows on both sides, with the
  // message of `reason`. Never blocks. Has no effect on a channel that has closed.
  virtual void Close(const Status& reason) = 0;
  // Says that the peer's end is known, from another channel, to have closed without a transfer, so
  // that OnReleased() need not wait for its word. Call it after Close().
  virtual void NotePeerClosed() {}

  // --- What it is, once Connect() has succeeded: callers choose by it how they send. ---

  // Returns the fabric's name in the registry.
  virtual const char* fabric() const = 0;
  // Describes the route to the peer for users, for example "same host".
  virtual std::string Route() const = 0;
  // Returns whether Map() works on this channel.
  virtual bool MapsPeer() const { return false; }
  // Returns whether the CPU copies the data of Read() and Write(). If so, the local buffer may lie
  // anywhere, and may be reused when Write() returns. Otherwise it must lie in a region of the
  // device and stay unchanged until OnTransfer().
  virtual bool Copies() const = 0;
  // Returns whether a Read() or Write() may still access local memory after OnClosed(). If so, call
  // Keep() in OnClosed() for the memory of those that have not ended.
  virtual bool OutlivedByTransfers() const { return false; }

  // --- Notifications: small messages, each of which arrives once, after what it follows. ---

  // Sends one notification that consists of the concatenated parts. The peer receives it after what
  // `after` says; a channel may keep a stricter order. Never blocks: if the peer's ring is full,
  // the notification is queued. Returns ResourceExhausted if more than kMaxQueued bytes would be,
  // unless it is no longer than kAlwaysQueued, or InvalidArgument if it is too long. If the channel
  // closes, notifications that OnDelivered() has not reported may be lost, even if both processes
  // are alive. `number` receives the sequence number, starting at 1.
  virtual Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number = nullptr,
                        After after = After::Everything()) = 0;
  // Returns what OnDelivered() would report now, as far as known without polling.
  virtual uint64_t Delivered() const { return 0; }
  // Returns the notifications that the peer has not consumed. May also be called before the channel
  // connects and after it closes.
  virtual Backlog backlog() const = 0;

  // --- Transfers: between memory of both sides, in any order, without a call at the peer. ---

  // Lets the peer access the device's region `key`, until the region or the channel ends. Call it
  // before the first notification that names the region; repeated calls are cheap. Returns Internal
  // if there is no such region, ResourceExhausted if it cannot be registered or announced now.
  virtual Status Share(uint64_t key) = 0;
  // Returns whether `data` lies in a region that this channel can use or share. If so, `span`
  // covers the rest of the region from there.
  virtual bool Locate(const void* data, RemoteSpan* span) const = 0;

  // Starts a one-sided read; errors of its arguments are reported by OnTransfer(). No two transfers
  // that are under way may have the same cookie, except for kNobodyWaits. If MapsPeer(),
  // the polling thread must first have called Map() for the region, after a notification that names
  // it has arrived; the same holds for Write().
  virtual Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) = 0;
  // Starts a one-sided write. The write may be delayed until the next Notify() or Flush(), and
  // overtake earlier writes: before a second write to a place, the peer must confirm that a
  // notification sent after the first one has arrived, or its end must say so (kDelivered). If an
  // error is returned, no OnTransfer() follows: PermissionDenied if the peer shared the region
  // read-only, InvalidArgument if source or destination lies outside the registered regions.
  virtual Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) = 0;
  // Starts all delayed writes.
  virtual Status Flush() { return OkStatus(); }
  // Returns what a Write(), or a Read() if `access` is kRemoteRead, between this local memory and
  // this span of the peer's would report, without starting it. Like these, it may register the
  // local memory. For channels of one device: one that has several says only OK.
  virtual Status Check(const void* /*local*/, const RemoteSpan& /*span*/, Access /*access*/) const {
    return OkStatus();
  }
  // Keeps local memory until no transfer accesses it any more. Never blocks.
  virtual void Keep(OwnerRef /*memory*/) {}

  // --- Memory of the peer in place, where MapsPeer(): used without a copy of it. ---

  // Returns the peer's region `key`, or null if this channel does not map the peer's memory or has
  // no such region. As for Read(), the polling thread must have called Map() for the region, or
  // polled since the peer shared it.
  virtual std::shared_ptr<RemoteRegion> Remote(uint64_t /*key*/) const { return nullptr; }
  // Maps memory of the peer read-only. Returns an empty span if that fails or is not supported.
  // Call it only from the polling thread.
  virtual MappedSpan Map(const RemoteSpan& /*span*/) { return MappedSpan(); }
  // Delays OnReleased() at the peer while the result exists, as a MappedSpan does. It protects peer
  // memory that is used without a mapping.
  virtual std::shared_ptr<const void> Hold() const { return nullptr; }
  // If `data` lies in peer memory that Map() returned, sets `span` to its location there and
  // returns true.
  virtual bool Owns(const void* /*data*/, RemoteSpan* /*span*/) const { return false; }
};

// A port of a card that a device uses.
struct PortReport {
  std::string name;  // "mlx5_0:1"
  std::string text;  // with its address: "mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)"
  bool active = false;
  uint64_t written_bytes = 0;  // by this process into memory of peers, notifications included
  uint64_t read_bytes = 0;     // by this process from memory of peers
  uint64_t failures = 0;       // how often it became inactive, or queue pairs of it were given up
  std::string subnet = {};     // "10.7.0.0/24"; empty: not known
  std::string folder = {};     // of the card in sysfs; empty: not known
};

// How large transfers pass through a device that is one port: piece by piece, so that small ones
// wait for no more than a window. In bytes.
struct Pace {
  uint64_t piece = uint64_t{256} << 10;   // the longest transfer that its channels take
  uint64_t window = uint64_t{512} << 10;  // pieces of writes under way, for all channels
  uint64_t reads = uint64_t{512} << 10;   // the same of reads
};

// An opened fabric. It must outlive its regions and channels. One thread at a time, the polling
// thread, calls Poll().
class Device {
 public:
  virtual ~Device() = default;

  // Describes the device for users: "shm; verbs by mlx5_0:1 (RoCE v2, GID 3 = 10.7.0.1, MTU 4096)".
  virtual std::string Summary() const = 0;
  // Returns the ports that it uses, the preferred one first; none if the fabric has no cards.
  virtual std::vector<PortReport> Ports() const { return {}; }
  // Returns whether its port is up, if it is a device of one port. Cheap.
  virtual bool Active() const { return true; }
  // Returns how large transfers should be cut for it.
  virtual Pace pace() const { return Pace(); }
  // Returns false in a process that was forked from the one that opened the device.
  virtual bool Usable() const = 0;
  // Returns OK if a channel of this device can reach the channel with this address; otherwise the
  // reason, as Unavailable; as PermissionDenied, if this fabric would reach it but for how the two
  // processes were started; or for a malformed address, as InvalidArgument.
  virtual Status Reaches(std::string_view channel_address) const = 0;

  // Allocates and registers memory at `place`, an address range that the caller has reserved, or
  // anywhere if null. `length` must be a multiple of RegionGranule(). Returns ResourceExhausted if
  // the host or a limit does not allow it, FailedPrecondition in a forked child.
  virtual Status Allocate(size_t length, Access access, void* place,
                          std::unique_ptr<Region>* region) = 0;
  // Returns the unit of region lengths, in bytes.
  virtual size_t RegionGranule() const = 0;
  // Lets peers of this device access a region of another device, under the same key. Returns
  // Unimplemented if the fabric cannot. The region must end before this device.
  virtual Status Adopt(Region* region) = 0;
  // Returns whether Import() works here.
  virtual bool Imports() const { return false; }
  // Registers memory of an accelerator. The region does not own it; the descriptor is not used
  // after the call. Peers may read there, and this side may Read() into it, on channels without
  // Copies(). Returns Unimplemented if the fabric cannot, another error if it does not accept this
  // memory.
  virtual Status Import(const DeviceMemory& /*memory*/, Access /*access*/,
                        std::unique_ptr<Region>* /*region*/) {
    return Status(Code::kUnimplemented, "the fabric cannot access memory of accelerators");
  }
  // Maps a region of this device a second time, read-only, as a peer would see it. Returns an empty
  // span if that fails or is not supported.
  virtual MappedSpan MapOwn(const RemoteSpan& span) = 0;
  // If `data` lies in a region of this device or in a view by MapOwn(), sets `span` to the rest of
  // the region from there and returns true.
  virtual bool Locate(const void* data, RemoteSpan* span) const = 0;

  // Opens a channel. It closes when `handler` is destroyed. Returns FailedPrecondition in a forked
  // child, ResourceExhausted if the host or a limit does not allow it.
  virtual Status Open(std::weak_ptr<ChannelHandler> handler, std::shared_ptr<Channel>* channel) = 0;

  // Processes pending events and returns how many there were. Polling thread only.
  virtual int Poll() = 0;
  // Prepares for Sleep(): until the next Poll(), any event ends a Sleep(). Returns false if events
  // are already pending; call Poll() then. Polling thread only.
  virtual bool ArmNotification() = 0;
  // Blocks until an event arrives, Wake() is called, or Now() reaches `deadline` (0: no deadline).
  // May return spuriously. Several threads may call it at once. An event may end only one of these
  // calls, so another Poll() must follow each of them.
  virtual void Sleep(Nanos deadline) = 0;
  // Ends all calls of Sleep(), or the next one if there is none.
  virtual void Wake() = 0;
  // Returns a file descriptor for poll(). It becomes readable when an event arrives after
  // ArmNotification() has returned true. -1 if there is no single descriptor.
  virtual int WaitDescriptor() const = 0;
};

// Returns whether `data` lies in memory that any channel or device has mapped read-only into this
// process. A tensor there must never be modified in place. Costs two comparisons.
bool IsMapped(const void* data);

}  // namespace rdma_transport::fabric
