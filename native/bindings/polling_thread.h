// A blocking interface to the fabric: a thread that polls the device, waits with deadlines, and
// memory and channels that keep alive what they need.
//
// Thread-safe. Knows nothing of Python. Fork: in a child of the process that opened the device,
// every call returns FailedPrecondition before it takes a lock, and nothing is destroyed: locks and
// sockets may be in any state there. Deadlines are times of Now().
#pragma once

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/settings.h"
#include "base/status.h"
#include "fabric/fabric.h"

namespace rdma_transport::bindings {

// Opens the fabric `name`, all available ones if it is "auto", or RDMA_TRANSPORT_FABRIC if it is
// empty. All other settings come from the environment, and are returned in `settings`. Returns
// InvalidArgument for any other name and for invalid settings, and otherwise the errors of
// fabric::OpenDevice().
Status OpenFabric(const std::string& name, Settings* settings,
                  std::unique_ptr<fabric::Device>* device);

// An object of one process, which forked children must not use.
class Owned {
 public:
  bool Ours() const { return owner_ == getpid(); }
  Status CheckOurs() const;

  // Owns `made`, and destroys it only in the process that created it.
  template <typename T>
  static std::shared_ptr<T> Share(T* made) {
    return std::shared_ptr<T>(made, [](T* ended) {
      if (ended->Ours()) delete ended;
    });
  }

 private:
  const pid_t owner_ = getpid();
};

// Registered memory. It stays registered after the device was closed, as long as this object lives.
class Memory final : public Owned {
 public:
  Memory(std::shared_ptr<fabric::Device> device, std::unique_ptr<fabric::Region> region,
         size_t length)
      : device_(std::move(device)), region_(std::move(region)), length_(length) {}

  char* data() const { return region_->address(); }
  // The requested length; the region is at least as long.
  size_t length() const { return length_; }
  uint64_t key() const { return region_->key(); }
  bool writable() const { return region_->access() == fabric::Access::kRemoteReadWrite; }

 private:
  const std::shared_ptr<fabric::Device> device_;  // declared before the region, to outlive it
  const std::unique_ptr<fabric::Region> region_;
  const size_t length_;
};

// A read or write in progress; null stands for one that has ended well. Guarded by its
// BlockingChannel's lock.
struct Transfer {
  std::shared_ptr<Memory> memory;  // null once it has ended
  bool done = false;
  Status status;
};

// A channel with blocking calls. They return Unavailable, with the reason, if it is closed, and
// FailedPrecondition if it is not connected yet.
class BlockingChannel final : public Owned, public fabric::ChannelHandler {
 public:
  explicit BlockingChannel(std::shared_ptr<fabric::Device> device) : device_(std::move(device)) {}

  Status Address(std::string* address) const;
  // `key` is that of fabric::Terms; may be empty.
  Status Connect(const std::string& peer_address, bool active, const std::string& key);
  // Both are empty before Connect().
  std::string FabricName() const;
  std::string Route() const;

  // These wait until `deadline`, and then return DeadlineExceeded.
  Status WaitConnected(Nanos deadline);
  Status Wait(const std::shared_ptr<Transfer>& transfer, Nanos deadline);
  Status Receive(Nanos deadline, std::string* note);
  bool Done(const std::shared_ptr<Transfer>& transfer) const;

  Status Share(const std::shared_ptr<Memory>& memory);
  // Waits until the peer's region `key` can be reached, that is, until its Share() has arrived
  // here. `scratch` receives bytes that are discarded.
  Status WaitRemote(uint64_t key, const std::shared_ptr<Memory>& scratch, Nanos deadline);
  // Starts a transfer between `memory` at offset `at` and the peer's region. The caller must check
  // both bounds. Returns NotFound if the peer no longer has the region. Where the channel maps the
  // region, the transfer has ended when this returns, and `transfer` is null.
  Status Start(bool write, const std::shared_ptr<Memory>& memory, uint64_t at, uint64_t key,
               uint64_t offset, uint64_t length, std::shared_ptr<Transfer>* transfer);
  // Makes the whole transfer now, if the channel maps the region. Otherwise, and after any error,
  // returns false; call Start() then.
  bool Copy(bool write, const std::shared_ptr<Memory>& memory, uint64_t at, uint64_t key,
            uint64_t offset, uint64_t length);
  Status Notify(std::string_view note);
  void Close(const std::string& reason);

  // The functions below are for PollingThread.
  Status Open(const std::shared_ptr<BlockingChannel>& self);
  bool closed() const;
  // Releases a channel that has closed, or cannot close because polling has ended.
  void Drop();

  void OnConnected() override;
  void OnNotify(const char* data, size_t length) override;
  void OnTransfer(uint64_t cookie, const Status& status) override;
  void OnClosed(const Status& status) override;

 private:
  enum class State { kNew, kConnecting, kConnected, kClosed };

  Status Connected(std::shared_ptr<fabric::Channel>* channel) const;
  Status ClosedLocked() const;
  Status Explained(const Status& status);
  static bool CopyNow(const fabric::Channel& channel, bool write, char* local,
                      const fabric::RemoteSpan& span);

  std::shared_ptr<fabric::Device> device_;

  mutable std::mutex mu_;  // not held while the channel is called
  std::condition_variable changed_;
  State state_ = State::kNew;
  std::shared_ptr<fabric::Channel> channel_;
  std::string fabric_;
  std::string route_;
  std::string reason_;  // why it closed
  std::deque<std::string> inbox_;
  size_t inbox_bytes_ = 0;
  uint64_t last_cookie_ = 0;
  std::map<uint64_t, std::shared_ptr<Transfer>> transfers_;
};

// Returns how long all ranks may take to meet, as the environment says. If that is invalid, Open()
// says so.
Nanos StartTimeout();

// A device and the thread that polls it. Thread-safe.
class PollingThread final : public Owned {
 public:
  static Status Open(const std::string& fabric, std::shared_ptr<PollingThread>* thread);
  ~PollingThread() { Close(); }

  const std::string& summary() const { return summary_; }
  // How long threads spin before they sleep.
  Nanos spin() const { return spin_; }
  // How long a peer that is waited for may be silent.
  Nanos peer_timeout() const { return peer_timeout_; }
  // After which time collectives that wait for members are logged, or fail.
  Nanos stall_warning() const { return stall_warning_; }
  Nanos stall_timeout() const { return stall_timeout_; }
  // Returns the device, for users that open channels of their own. They must drop those before
  // Close().
  Status Device(std::shared_ptr<fabric::Device>* device) const;
  Status Allocate(size_t length, bool writable_by_peers, std::shared_ptr<Memory>* memory);
  Status OpenChannel(std::shared_ptr<BlockingChannel>* channel);
  // Returns a function for threads that wait for an event: it polls instead of the polling thread
  // until `done` returns true, or nothing has happened for spin(). So no thread has to be woken for
  // the event. Returns at once if another thread does this.
  static std::function<void(const std::function<bool()>& done)> Helper(
      const std::shared_ptr<PollingThread>& thread);
  // Memory for BlockingChannel::WaitRemote().
  Status Scratch(std::shared_ptr<Memory>* memory);
  // Closes the channels, notifies the peers, and ends the thread, in bounded time. Memory stays
  // valid.
  void Close();

 private:
  PollingThread(const Settings& settings, std::shared_ptr<fabric::Device> device);
  void Loop(fabric::Device* device);
  void Help(const std::function<bool()>& done);
  bool Reap();

  const Nanos spin_;
  const Nanos peer_timeout_;
  const Nanos stall_warning_;
  const Nanos stall_timeout_;
  const std::string summary_;
  std::mutex close_mu_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::mutex poll_mu_;  // held by the thread that polls
  std::atomic<bool> helped_{false};

  mutable std::mutex mu_;
  std::condition_variable reaped_;
  std::shared_ptr<fabric::Device> device_;  // null if closed
  // Kept until they have closed, because a peer's card may still write their memory.
  std::vector<std::shared_ptr<BlockingChannel>> channels_;
  std::shared_ptr<Memory> scratch_;
};

}  // namespace rdma_transport::bindings
