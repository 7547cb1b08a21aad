#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "fabric/host/transfer_base.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/inbox.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/outbox.h"
#include "fabric/verbs/queue_pair.h"

namespace rdma_transport::fabric::verbs {

// What a channel uses of its device. Thread-safe, except where a function says otherwise.
class ChannelDevice {
 public:
  virtual Adapter& adapter() const = 0;
  virtual RegisteredMemory& memory() const = 0;
  // Returns how long a channel may be idle before it probes its peer.
  virtual Nanos keepalive() const = 0;
  // Returns the time of the last Poll(). Polling thread only.
  virtual Nanos polled_at() const = 0;
  // Returns whether the polling thread sleeps and thus cannot send delayed batches.
  virtual bool asleep() const = 0;
  virtual void Wake() = 0;
  // Requests a call of Service() for the channel with this tag. Takes no lock of a channel.
  virtual void Attend(uint32_t tag) = 0;
  // Polling thread only, without the lock of any channel.
  virtual void HandleDescriptors() = 0;

 protected:
  ~ChannelDevice() = default;
};

// See Channel for the contract. One queue pair carries everything, in order: a notification arrives
// after all that was sent before it, whatever `After` allows. When the queue pair fails, the
// channel breaks.
//
// mu_ guards the whole sending side. No lock is held while the handler runs.
class VerbsChannel final : public Channel {
 public:
  VerbsChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler, uint32_t tag);
  ~VerbsChannel() override;

  // `ring`: the bytes of the ring into which the peer writes.
  Status Open(uint64_t ring);

  std::string Address() const override;
  Status Connect(std::string_view peer_address, Role role, const Terms& terms) override;
  const char* fabric() const override { return "verbs"; }
  std::string Route() const override { return route_; }
  bool Copies() const override { return false; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override;
  Status Check(const void* local, const RemoteSpan& span, Access access) const override;
  // Tells the peer, unless the port is not active.
  void Close(const Status& reason) override;

  // The functions below are for the device, on the polling thread.
  uint32_t tag() const { return tag_; }
  const CompletionQueue* queue() const { return pair_->queue(); }
  // Returns the number of events that the completion caused for the handler or the peer.
  int OnCompletion(const ibv_wc& completion);
  // Does pending work other than completions. Returns false when the channel has finished.
  bool Service();
  // Returns whether the handler is gone and the channel has not finished. It then needs a Service()
  // that nobody requests.
  bool abandoned() const { return handler_.expired() && state_.load() != State::kFinished; }
  // Returns whether Probe() must be called often: records wait for room in the peer's ring.
  bool NeedsProbes() const;
  // Checks whether the peer's card still responds. Needed if this side waits for room or has
  // nothing to send, because then no operation in flight can fail. Returns when to call it again.
  Nanos Probe(Nanos now);
  // Breaks the channel for an error that no completion reports.
  void Fail(const Status& reason);
  void WithdrawRegion(uint64_t key);

 private:
  static constexpr Nanos kFlushTimeout = 500 * kMillisecond;
  static constexpr Nanos kClosingTimeout = 1 * kSecond;
  static constexpr size_t kMaxReason = 1024;  // bytes of the reason for closing

  // kClosing: the last record is in flight. kBroken: all operations fail, and those in flight are
  // being flushed.
  enum class State { kNew, kConnecting, kConnected, kClosing, kBroken, kFinished };

  // The following require mu_.
  Status Greet(RecordKind kind);
  Status AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  Status ChargePending(uint64_t peer_ring);
  void SettlePending();
  void Pump();
  Status Transfer(Work::Kind kind, const RemoteSpan& span, char* local, uint64_t cookie);
  void PushTransfer(Work work);
  bool IsHeld(Nanos now, Status* reason);
  void NoteDelivered();
  void PartLocked(const Status& reason);
  void BreakLocked(const Status& reason);

  // The following run on the polling thread.
  int OnReceive(const ibv_wc& completion);
  void OnSent(const ibv_wc& completion);
  Status HandleBatch(const Immediate& immediate);
  Status HandleRecord(RecordKind kind, std::string_view record);
  Status HandleGreeting(RecordKind kind, std::string_view shown);
  Status HandleConnected();
  bool DeliverNews();
  void Finish();

  bool Serving(State state) const {
    return state == State::kConnecting || state == State::kConnected || state == State::kClosing;
  }
  // Requests a call of Service() by the device's next Poll().
  void Attend();

  ChannelDevice* const device_;
  const std::weak_ptr<ChannelHandler> handler_;
  const uint32_t tag_;
  const std::string token_;
  Greeting greeting_;
  std::string route_;  // set by Connect()
  bool passive_ = false;
  int64_t pending_bytes_ = 0;  // charged for a peer that has not connected yet
  int depth_ = 0;              // work requests of the queue pair, and batches the peer may send

  Inbox inbox_;  // written by the peer
  // Used only by the polling thread.
  bool greeted_ = false;
  bool ignore_input_ = false;  // the rest of the ring is ignored
  Nanos answered_at_ = 0;      // when the peer's card last responded

  mutable std::mutex mu_;
  std::atomic<State> state_{State::kNew};
  std::shared_ptr<QueuePair> pair_;  // also of a Connect() that outlasts the channel
  bool connecting_ = false;          // by a thread, without the lock
  Outbox outbox_;
  host::TransferBase<RegionRecord> transfers_;
  // Memory for the reads that show that writes are visible, if that is to be reported.
  std::unique_ptr<host::MemoryRegion> proof_memory_;
  std::unique_ptr<Registration> proof_;
  uint64_t notified_ = 0;
  bool peer_handles_ = false;  // it is connected, and does not only receive
  uint64_t delivered_ = 0;
  uint64_t reported_ = 0;  // part of delivered_ that was reported
  std::map<uint64_t, std::shared_ptr<Registration>> shared_;  // by key; what the peer may access
  uint64_t oldest_ = 0;  // QueuePair::oldest(), first seen then
  Nanos oldest_since_ = 0;
  Status close_reason_;
  Nanos deadline_ = 0;  // of kClosing and kBroken
  uint64_t flushed_ = 0;

  std::atomic<bool> needs_service_{false};
};

}  // namespace rdma_transport::fabric::verbs
