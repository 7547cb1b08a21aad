#pragma once

#include <sys/types.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "fabric/host/file_descriptor.h"
#include "fabric/shm/messages.h"
#include "fabric/shm/peer_memory.h"
#include "fabric/shm/ring.h"
#include "fabric/shm/socket.h"
#include "fabric/shm/window.h"

namespace rdma_transport::fabric::shm {

class ShmChannel;

// What a channel uses of its device. Thread-safe.
class ChannelDevice {
 public:
  virtual uint64_t id() const = 0;
  virtual const std::string& socket_name() const = 0;
  // Returns whether ArmNotification() was called and Poll() was not called since.
  virtual bool Asleep() const = 0;
  virtual void Wake() = 0;
  // Returns whether an ancestor of this process opened this device.
  virtual bool Foreign() const = 0;
  // As in Device.
  virtual bool Locate(const void* data, RemoteSpan* span) const = 0;
  virtual bool FindRegion(uint64_t key, uint64_t* length, Access* access, int* fd) const = 0;
  virtual Status Watch(ShmChannel* channel, int socket) = 0;
  virtual void Unwatch(int socket) = 0;
  // Requests that the polling thread looks at the channel in each turn.
  virtual void Attend(ShmChannel* channel) = 0;
  // Also notifies the channel when its socket becomes writable.
  virtual void WatchForRoom(ShmChannel* channel, int socket, bool on) = 0;
  // Removes a channel that has finished.
  virtual void Remove(ShmChannel* channel) = 0;

 protected:
  ~ChannelDevice() = default;
};

// See Channel for the contract.
//
// Lock order: send_mu_ before socket_mu_. No lock is held while the handler runs.
//
// When the socket's stream ends, the peer no longer accesses memory of this process. If a process
// dies, its stream ends at once. A process that closes the channel sends Bye, and ends its stream
// when it has released the last of the peer's memory (Presence). Until then both sides keep the
// socket and the memory that the peer may still use.
class ShmChannel final : public Channel {
 public:
  ShmChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler, std::string token);
  ~ShmChannel() override;

  std::string Address() const override;
  Status Connect(std::string_view peer_address, Role role, const Terms& terms) override;
  const char* fabric() const override { return "shm"; }
  std::string Route() const override { return "same host"; }
  bool MapsPeer() const override { return true; }
  bool Copies() const override { return true; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  std::shared_ptr<RemoteRegion> Remote(uint64_t key) const override;
  MappedSpan Map(const RemoteSpan& span) override;
  bool Owns(const void* data, RemoteSpan* span) const override;
  uint64_t Delivered() const override;
  std::shared_ptr<const void> Hold() const override;
  void Close(const Status& reason) override;

  // The functions below are for the device, on the polling thread.
  // Returns whether this is the passive side that waits for a peer with this greeting.
  bool Expects(std::string_view greeting) const {
    return state_.load() == State::kConnecting && passive_ && greeting_.IsPeers(greeting);
  }
  // Passive side: accepts the peer's connection and its first message.
  Status Attach(host::FileDescriptor socket, pid_t process, Message* hello);
  int Poll();
  bool HasWork() const;
  // Returns whether Poll() or FinishClose() may have something to do, now or without a message on
  // the socket.
  bool Busy() const;
  // Called by any thread that gives the channel something to do. What it gives must be visible.
  void Attend();
  // The polling thread looks at an active channel in each turn. An idle one keeps its flag raised.
  void SetActive(bool active);
  bool active() const { return listed_; }
  // Returns whether Poll() found something to do since the last call.
  bool TakeWorked() { return std::exchange(worked_, false); }
  // `writable`: the socket has room for queued messages.
  void HandleSocket(bool writable);
  // Returns whether the peer can see the sleep flag.
  bool attached() const { return attached_.load(std::memory_order_acquire); }
  void RaiseFlag() { incoming_.RaiseFlag(); }
  void LowerFlag() { incoming_.LowerFlag(); }
  void RingIfLazy();
  void WithdrawRegion(uint64_t key);
  bool closed() const { return state_.load() == State::kClosed; }
  // Closed, and there is nothing left to do or wait for.
  bool finished() const { return finished_.load(); }
  // Called after Close() until the channel has finished. Notifies the handler, releases the peer's
  // memory, and waits until the peer has released memory of this process.
  void FinishClose();

 private:
  // A peer that goes on sharing what is refused does not follow the rules.
  static constexpr int kMostRefusals = 4096;

  enum class State { kNew, kConnecting, kConnected, kClosed };

  static Status NotConnected() {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  // Returns an error if the channel has been closed meanwhile.
  Status Advance(State from, State to);
  Status CloseReason() const;
  std::shared_ptr<const SocketEnd> TakeSocket(host::FileDescriptor socket, pid_t process);
  Status SendEnds(MessageType type);
  Status TakePeerEnds(Message* message);
  Status BecomeConnected();
  Status HandleMessage(Message* message);
  Status DrainSocket(int most);
  void EndAfterRing(const Status& reason);
  int PollCompletions(ChannelHandler* handler);
  int PollPending();
  int PollRing(ChannelHandler* handler);
  void Confirm(ChannelHandler* handler);
  void FlushPending();
  void Enqueue(const iovec* parts, int count, size_t length);
  void RingPeer();
  void SendLocked(std::string_view message);
  Status Refuse(const Message& message, const Status& reason);
  void SendUnsent();
  void HandleEndOfStream();
  bool EndStream(bool* all_sent);
  void Finish();
  Owner peer() const { return {peer_device_id_.load(), peer_process_.load()}; }
  Status Transfer(const RemoteSpan& span, bool write, char* local, uint64_t cookie);

  ChannelDevice* const device_;
  const std::weak_ptr<ChannelHandler> handler_;
  const std::string token_;
  Greeting greeting_;
  std::atomic<uint64_t> peer_device_id_{0};
  std::atomic<pid_t> peer_process_{0};
  std::atomic<State> state_{State::kNew};
  bool passive_ = false;

  RingConsumer incoming_;
  std::atomic<bool> attached_{false};  // outgoing_ is mapped
  std::atomic<bool> unrung_{false};

  mutable std::mutex send_mu_;
  RingProducer outgoing_;
  std::deque<std::string> pending_;
  size_t pending_bytes_ = 0;
  std::atomic<uint64_t> notified_{0};
  std::atomic<bool> has_pending_{false};

  mutable std::mutex socket_mu_;
  std::shared_ptr<const SocketEnd> socket_;
  std::shared_ptr<const void> presence_;
  int refusals_ = 0;                // used only by the polling thread
  std::deque<std::string> unsent_;  // messages waiting for room in the socket
  std::set<uint64_t> shared_;
  std::set<uint64_t> refused_;  // by the peer

  PeerMemory peer_memory_;

  mutable std::mutex state_mu_;
  struct Completion {
    uint64_t cookie;
    Status status;
  };
  std::deque<Completion> completions_;
  std::atomic<bool> has_completions_{false};
  Status close_reason_;
  std::atomic<bool> finished_{false};

  std::atomic<bool> attended_{false};  // active, or about to be

  // Used only by the polling thread.
  bool listed_ = false;
  bool worked_ = false;
  uint64_t confirmed_ = 0;  // notifications reported by OnDelivered()
  bool ending_ = false;     // close with end_reason_ after reading the ring
  uint64_t ending_at_ = 0;  // but read no further than this position
  Status end_reason_;
  std::atomic<bool> eof_{false};  // the peer's stream has ended; read by other threads too
  bool reported_ = false;         // OnClosed() was called
};

}  // namespace rdma_transport::fabric::shm
