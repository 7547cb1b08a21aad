#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "fabric/verbs/adapter.h"
#include "fabric/verbs/channel_ports.h"
#include "fabric/verbs/inbox.h"
#include "fabric/verbs/lane.h"
#include "fabric/verbs/memory.h"
#include "fabric/verbs/outbox.h"
#include "fabric/verbs/queue_pair.h"
#include "fabric/verbs/transfers.h"
#include "fabric/verbs/windows.h"

namespace rdma_transport::fabric::verbs {

// What a channel uses of its device. Thread-safe, except where a function says otherwise.
class ChannelDevice {
 public:
  // Returns the preferred port. What is not of one port, such as the settings, may be asked of it.
  virtual Adapter& adapter() const = 0;
  // Returns all ports in the order of preference; first those that are active and have not failed
  // lately.
  virtual std::vector<Adapter*> ports() const = 0;
  virtual RegisteredMemory& memory() const = 0;
  // Returns the most bytes of one work request.
  virtual uint64_t chunk() const = 0;
  // Returns the bytes of a piece in a lane, for each queue pair, if no other lane has transfers.
  virtual uint64_t piece() const = 0;
  // Returns the number of lanes in which transfers wait; of all channels, for one direction.
  virtual std::atomic<int>* lanes_of_writes() = 0;
  virtual std::atomic<int>* lanes_of_reads() = 0;
  // Returns how long a channel may be idle before it probes its peer.
  virtual Nanos keepalive() const = 0;
  // Returns the time of the last Poll(). Polling thread only.
  virtual Nanos polled_at() const = 0;
  // Returns whether the polling thread sleeps and thus cannot send delayed batches.
  virtual bool asleep() const = 0;
  virtual void Wake() = 0;
  // Requests a call of Service() for the channel with this tag. Takes no lock of a channel.
  virtual void Attend(uint32_t tag) = 0;
  // Runs `call` on another thread. It may take long, and must not need the lock of a channel.
  virtual void CallSlowly(std::function<void()> call) = 0;
  // Requests a call of Probe() at this time. Polling thread only.
  virtual void ProbeAt(uint32_t tag, Nanos when) = 0;
  // Polling thread only, without the lock of any channel.
  virtual void HandleDescriptors() = 0;

 protected:
  ~ChannelDevice() = default;
};

// See Channel for the contract.
//
// The main queue pair, at first the first one, carries notifications, small transfers and a share
// of the large ones. The others, on its port and on further ones, carry only shares of large
// transfers. If the main one fails, one on a further port takes its place; see channel_move.cc.
// Large transfers pass through lanes, so that small ones need not wait behind them; see
// channel_lanes.cc.
//
// mu_ guards the whole sending side. No lock is held while the handler runs.
class VerbsChannel final : public Channel {
 public:
  VerbsChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler, uint32_t tag);
  ~VerbsChannel() override;

  Status Open();

  std::string Address() const override;
  void Authenticate(std::string key) override { key_ = std::move(key); }
  Status Connect(std::string_view peer_address, Role role) override;
  const char* fabric() const override { return "verbs"; }
  std::string Route() const override;
  bool MapsPeer() const override { return false; }
  bool Copies() const override { return false; }
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override;
  MappedSpan Map(const RemoteSpan&) override { return MappedSpan(); }
  bool Owns(const void*, RemoteSpan*) const override { return false; }
  void Close(const Status& reason) override;

  // The functions below are for the device, on the polling thread.
  uint32_t tag() const { return tag_; }
  // Returns the number of events that the completion caused for the handler or the peer.
  int OnCompletion(const ibv_wc& completion);
  // Does pending work other than completions. Returns false when the channel has finished.
  bool Service();
  // Returns whether the handler is gone and the channel has not finished. It then needs a Service()
  // that nobody requests.
  bool abandoned() const { return handler_.expired() && state_.load() != State::kFinished; }
  // Returns whether Probe() must be called often: records wait for room in the peer's ring, or a
  // queue pair on a further port is being dropped.
  bool NeedsProbes() const;
  // Checks whether the peer's card still responds. Needed if this side waits for room or has
  // nothing to send, because then no operation in flight can fail. Also advances what is to happen
  // on further ports. Returns when to call it again.
  Nanos Probe(Nanos now);
  // A port has become active, or has gone down.
  void OnPort(const Adapter& port, bool active, const Status& reason);
  // A port does not work any more, and will not.
  void OnPortFailed(const Adapter& port, const Status& reason);
  // A queue pair has failed, by an event of the card.
  void OnPairFailed(uint32_t tag, const Status& reason);
  // Breaks the channel for an error that no completion reports.
  void Fail(const Status& reason);
  void ForgetRegion(uint64_t key);

 private:
  // How long the posted work of a broken queue pair may take to be flushed. For the main one of a
  // channel that goes on, a card that lives has longer: SettleMain().
  static constexpr Nanos kFlushTimeout = 500 * kMillisecond;
  static constexpr Nanos kClosingTimeout = 1 * kSecond;
  static constexpr size_t kMaxReason = 1024;  // bytes of the reason for closing

  // kClosing: the last record is in flight. kBroken: all operations fail, and those in flight are
  // being flushed.
  enum class State { kNew, kConnecting, kConnected, kClosing, kBroken, kFinished };

  // A region that the peer knows.
  struct Shared {
    RegionRecord record;
    Registrations memory;  // by port
  };

  // Shared with the thread that connects a queue pair.
  struct Connecting {
    std::shared_ptr<QueuePair> pair;
    ChannelAddress peer;
    size_t target = 0;
    Status status;  // set before `done`
    std::atomic<bool> done{false};
  };

  // A queue pair as this end sees it; see channel_rails.cc. Those on the port of the main one are
  // kUp at first.
  struct PairState {
    enum class Phase {
      kUntested,    // connected. The active end tests it; the passive end waits for the outcome.
      kUp,          // tested; carries shares of transfers once the peer's memory is known
      kFailed,      // being dropped, until this end is flushed and the peer's end is broken
      kDown,        // dropped
      kOffered,     // of the active end: made anew, and not yet connected
      kConnecting,  // made anew; a thread connects it
    };
    Phase phase = Phase::kUp;
    bool made_anew = false;                  // not the one of the addresses
    bool peer_down = false;                  // kFailed: the peer's end is broken
    std::vector<Work> unfinished;            // kFailed: flushed so far
    Nanos due = 0;                           // kFailed: end of the wait; kDown: the next attempt
    Nanos delay = 0;                         // until the next attempt but one
    std::string unused;                      // why the last attempt failed
    std::shared_ptr<Connecting> connecting;  // kConnecting
    uint64_t oldest = 0;                     // QueuePair::oldest(), seen first at `since`
    Nanos since = 0;
    // Batches, credits and signals: those that arrived here, and those that are known to have
    // arrived at the peer.
    uint32_t arrived = 0;
    uint32_t confirmed = 0;
  };

  // How another queue pair takes the place of the main one; see channel_move.cc.
  struct Move {
    size_t to = 0;              // carries the signals, and becomes the main one
    bool agreed = false;        // the active end has chosen it
    bool reported = false;      // the peer was told what had arrived
    bool answered = false;      // the peer's card has answered on it
    int probes = 0;             // without an answer
    Nanos probed = 0;           // when the last one was counted
    uint32_t peer_arrived = 0;  // if peer_down: what arrived at the peer, modulo kCountModulus
    Status reason;              // why the main one failed
  };

  // The following require mu_.
  Status Greet(RecordKind kind);
  Status AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled);
  Status ChargePending(uint64_t peer_ring);
  void SettlePending();
  void Push(Work work);
  void Pump();
  void BindWindow(uint64_t key, size_t i);
  Status OpenRing(bool next, size_t i, RegionEnd* end);
  void OnReceiveFailed(size_t i, const ibv_wc& completion);
  Status SendRegion(RegionRecord record, const Registrations& memory);
  Status Transfer(Work::Kind kind, const RemoteSpan& span, char* local, uint64_t cookie);
  // Of large transfers, in channel_lanes.cc.
  Lane& LaneOf(Work::Kind kind) { return kind == Work::Kind::kRead ? reads_ : writes_; }
  uint64_t Piece(int lanes) const;
  Status SendAfter(After after, RecordKind kind, const iovec* parts, int count, uint64_t number,
                   bool signaled);
  Status KeepInLane(RecordKind kind, const iovec* parts, int count, uint64_t number, bool signaled,
                    bool ordered);
  void AdvanceLane(Lane* lane);
  void AdvanceLanes();
  void NoteDelivered();
  void PartLocked(const Status& reason);
  void BreakLocked(const Status& reason);

  // Of queue pairs on further ports, in channel_rails.cc. The following require mu_.
  bool IsFurther(size_t i) const { return pairs_[i]->port() != main().port(); }
  void BeginRails();
  void LeaveAtFirst(size_t i, const Status& reason);
  void LeaveUntested(size_t i);
  void TestPair(size_t i);
  bool FailPair(size_t i, const Status& reason);
  bool OnPairCompletion(size_t i, const ibv_wc& completion, const Work& work, bool known);
  void SettlePair(size_t i, Nanos now);
  void LeavePair(size_t i, const std::vector<Work>& unfinished, Nanos now);
  void TryAfterDelay(size_t i, Nanos now);
  void ForgetPair(size_t i);
  void OfferPair(size_t i, Nanos now);
  void NoteUnused(size_t i, const std::string& why);
  Status MakePair(size_t i);
  void BeginToConnect(size_t i);
  void TakeConnected();
  void UseConnected(size_t i);
  void TryLater(size_t i, const std::string& why);
  void Decline(size_t i, const Status& reason);
  Status HandlePairRecord(RecordKind kind, std::string_view record);
  Status HandleOffer(const PairRecord& offer);
  void HandleAnswer(const PairRecord& answer);
  Status HandlePairDown(const Immediate& signal);
  void SendPairDown(size_t i, bool answer);
  void BringUp(size_t i);
  void UsePair(size_t i);
  Registrations ByPair(const Registrations& memory) const;
  void AnnounceAgain(size_t i);
  Status SendPairRecord(RecordKind kind, size_t i);
  Status LearnPort(const PairRecord& record);
  void LeaveIfHeld(size_t i, Nanos now);
  void AdvanceRails(Nanos now);
  size_t IndexOf(uint32_t tag) const;

  // Of the main queue pair, in channel_move.cc. The following require mu_.
  QueuePair& main() const { return *pairs_[main_]; }
  bool Moving() const { return states_[main_].phase == PairState::Phase::kFailed; }
  // Whether queue pair `i` is dropped, so that nothing that arrives there counts any more.
  bool IsLeft(size_t i) const;
  bool ReachesRings(size_t i) const;
  bool CanCarry(size_t i) const;
  static constexpr size_t kNoCarrier = kMaxQueuePairs;
  size_t FindCarrier() const;
  bool FailMain(const Status& reason, size_t carrier);
  void Signal(size_t i, const Immediate& signal);
  Status HandleSignal(size_t i, const Immediate& signal);
  Status HandleMainDown(size_t i);
  Status HandleArrived(size_t i, const Immediate& signal);
  void SettleMain(Nanos now);
  void BreakMove(const std::string& why);
  void MoveMain(Nanos now);
  void AnnounceRings(size_t i);
  void GiveUp(size_t i, const Status& reason);
  void DescribeRoute();

  // The following run on the polling thread.
  int OnReceive(const ibv_wc& completion);
  void OnSent(const ibv_wc& completion);
  Status OnCredit(const Immediate& credit);
  Status OnRingRequest(uint64_t size);
  Status OnRing(std::string_view record);
  Status OnRingEnd(std::string_view record);
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
  std::string key_;
  Greeting greeting_;
  std::string route_;
  bool passive_ = false;
  bool check_due_ = false;     // not yet checked that the passive side's ring is writable
  int64_t pending_bytes_ = 0;  // charged for a peer that has not connected yet
  int credit_receives_ = 0;    // receives for what is not a batch
  int depth_ = 0;              // work requests per queue pair, and batches the peer may send

  Inbox inbox_;  // written by the peer
  // Used only by the polling thread.
  bool greeted_ = false;
  bool ignore_input_ = false;  // the rest of the ring is ignored
  Nanos answered_at_ = 0;      // when the peer's card last responded

  mutable std::mutex mu_;
  std::atomic<State> state_{State::kNew};
  ChannelPorts ports_;
  std::vector<std::shared_ptr<QueuePair>> pairs_;
  std::vector<PairState> states_;  // of each of them
  size_t main_ = 0;                // the main one; changed by the polling thread only
  Move move_;                      // while that has failed
  bool gave_up_ = false;           // the last signal is on its way, until the deadline
  ChannelAddress peer_;
  std::vector<size_t> targets_;  // the peer's queue pairs in its address
  Windows windows_;              // bound to these queue pairs
  Outbox outbox_;
  Transfers transfers_;
  Lane writes_;
  Lane reads_;
  uint64_t notified_ = 0;
  bool peer_handles_ = false;  // it is connected, and does not only receive
  uint64_t delivered_ = 0;
  uint64_t reported_ = 0;              // part of delivered_ that was reported to the handler
  std::map<uint64_t, Shared> shared_;  // by key
  Status close_reason_;
  Nanos deadline_ = 0;  // of kClosing and kBroken
  uint64_t flushed_ = 0;

  std::atomic<bool> needs_service_{false};
};

}  // namespace rdma_transport::fabric::verbs
