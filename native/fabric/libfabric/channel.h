#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/greeting.h"
#include "fabric/libfabric/endpoint.h"
#include "fabric/libfabric/inbox.h"
#include "fabric/libfabric/outbox.h"
#include "fabric/libfabric/transfers.h"
#include "fabric/libfabric/wire.h"

namespace rdma_transport::fabric::libfabric {

// See Channel for the contract.
//
// All peers share the device's endpoint, so there is no connection whose end would end the
// operations of both sides. A channel thus ends in an exchange: each side starts no more operations
// and tells the other when those that it started have ended. If the peer does not answer, the
// channel closes, and lingers until it is certain that the peer accesses nothing here.
//
// mu_ guards the whole sending side. No lock is held while the handler runs.
class LibfabricChannel final : public Channel,
                               public std::enable_shared_from_this<LibfabricChannel> {
 public:
  LibfabricChannel(Endpoint* endpoint, std::weak_ptr<ChannelHandler> handler, uint32_t number);
  ~LibfabricChannel() override;

  std::string Address() const override;
  Status Connect(std::string_view peer_address, Role role, const Terms& terms) override;
  const char* fabric() const override { return "libfabric"; }
  std::string Route() const override;
  bool Copies() const override { return false; }
  bool OutlivedByTransfers() const override { return true; }
  void Keep(OwnerRef memory) override;
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override;
  Status Check(const void* local, const RemoteSpan& span, Access access) const override;
  void Close(const Status& reason) override;
  void NotePeerClosed() override;

  // The functions below are for the device.
  uint64_t tag() const { return tag_; }
  uint32_t number() const { return number_; }
  // The user has dropped the channel: its handler, which other channels may share, is no longer
  // called. Any thread.
  void Abandon();
  // Breaks the channel for an error that no completion reports. Any thread.
  void Fail(const Status& reason);
  void WithdrawRegion(uint64_t key);

  // Those below, on the polling thread.
  void OnMessage(const MessageHeader& header, std::string_view bytes, Nanos now);
  void OnArrivedWrite(uint16_t sequence, Nanos now);
  // An operation of this channel has ended.
  void OnEnded(const Operation& operation, const Status& status);
  // Does pending work. Returns false when the channel has finished.
  bool Service(Nanos now);
  bool NeedsService() const {
    return needs_service_.load(std::memory_order_relaxed) || Abandoned();
  }
  // Whether Service() must be called again and again, although nothing has happened.
  bool Restless() const { return restless_.load(std::memory_order_relaxed); }
  // Sends what was delayed, because the device is about to sleep.
  void BeforeSleep();
  // When SendIfDue() sends what waits for other messages to go with: notifications, and the
  // confirmation of what came. 0: nothing waits.
  Nanos due() const { return due_.load(std::memory_order_relaxed); }
  void SendIfDue(Nanos now);
  // Looks for what is overdue.
  void Probe(Nanos now);

 private:
  using Kind = Operation::Kind;
  // kClosing: waits until the peer has read everything. kParting: has told the peer that it starts
  // no more operations. kLingering: closed, and the peer may still access memory here.
  enum class State { kNew, kConnecting, kConnected, kClosing, kParting, kLingering, kFinished };

  static constexpr size_t kMaxReason = 1024;  // in bytes

  static Status NotConnected();

  // The following require mu_.
  Status Greet(RecordKind kind);
  Status AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number, bool now);
  Status Transfer(bool write, const RemoteSpan& span, char* local, uint64_t cookie);
  void DueBy(Nanos time);
  void Pump();
  Operation* NewOperation(Kind kind);
  bool PostControl();
  bool PostMessage();
  bool PostTransfer(bool write);
  void WakeForWriteEnd(uint64_t length);
  bool PostMark();
  // What became of an operation: started, to be tried again by Service(), or impossible.
  enum class Start { kDone, kLater, kFailed };
  Start Started(Operation* operation, uint64_t length, ssize_t result, const char* what);
  bool MessageMayLeave() const;
  bool MayWrite() const;
  // How much of what the peer sent has come.
  struct Confirmed {
    uint64_t read = 0;     // messages
    uint64_t arrived = 0;  // writes
  };
  MessageHeader HeaderOf(MessageKind kind) const;
  Start Send(const MessageHeader& header, std::string_view body);
  // Whether the peer may soon have to stop writing for lack of a confirmation.
  bool OwesWrites() const {
    return arrived_.load() - confirmed_.arrived >= kMaxUnconfirmedWrites / 4;
  }
  void Confirm();
  void AskForConfirmation(Nanos now);
  void CloseLocked(const Status& reason);
  void PartLocked(const Status& reason);
  void LingerLocked();
  void TellDrained();
  bool Apart(Nanos now) const;
  bool PeerDrained(Nanos now) const;
  // Whether operations on memory of the user are under way, or messages.
  bool Busy() const { return under_way_ != marks_; }

  // The following run on the polling thread.
  Status TakeConfirmation(const MessageHeader& header);
  void AfterInput(const Status& status, bool confirm_at_once, Nanos now);
  void OnGone(const MessageHeader& header, std::string_view reason, Nanos now);
  Status HandleRecord(RecordKind kind, std::string_view record);
  Status HandleGreeting(RecordKind kind, std::string_view shown);
  bool DeliverNews();
  void TellClosed(bool released);
  void LimitSilence(Nanos now);

  // In a forked child, nothing may be sent on what belongs to the parent.
  bool Connected() const {
    return state_.load() == State::kConnected && endpoint_->domain().Usable();
  }
  // Whether the handler is gone, and the channel does not end yet.
  bool Abandoned() const {
    const State state = state_.load();
    return (state == State::kNew || Serving(state)) && handler_.expired();
  }
  // The user's handler; null if the user has dropped it, or this channel.
  std::shared_ptr<ChannelHandler> Handler() const {
    return abandoned_.load() ? nullptr : handler_.lock();
  }
  bool Serving(State state) const {
    return state == State::kConnecting || state == State::kConnected || state == State::kClosing;
  }
  // Requests a call of Service().
  void Attend() { needs_service_.store(true, std::memory_order_relaxed); }

  Endpoint* const endpoint_;
  const std::weak_ptr<ChannelHandler> handler_;
  const uint32_t number_;
  const uint64_t tag_;
  const std::string token_;
  Greeting greeting_;
  bool passive_ = false;
  bool remote_data_ = false;  // writes say that they have arrived
  WriteEnd write_end_ = WriteEnd::kReusable;

  // Used only by the polling thread.
  Inbox inbox_;
  bool greeted_ = false;
  bool ignore_input_ = false;
  bool told_closed_ = false;
  Nanos heard_at_ = 0;
  Nanos limited_at_ = 0;  // when the kernel's patience with a silent peer was last limited

  mutable std::mutex mu_;
  std::atomic<State> state_{State::kNew};
  ChannelAddress remote_;
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::string route_;
  Outbox outbox_;
  Transfers transfers_;
  // What is to be sent outside of the stream: a confirmation, maybe one that asks for another, and
  // that this side starts no more operations, or that these have ended.
  bool confirm_due_ = false;
  bool asks_ = false;
  bool end_due_ = false;
  // What the peer may access, by the key of the region.
  std::map<uint64_t, std::shared_ptr<Registration>> shared_;
  std::vector<OwnerRef> kept_;        // for operations under way
  std::atomic<uint64_t> read_{0};     // messages of the peer
  std::atomic<uint64_t> arrived_{0};  // writes of the peer
  Confirmed confirmed_;               // parts of these two that the peer knows of
  uint64_t unconfirmed_ = 0;          // the first message that was unconfirmed at the last probe
  Nanos asked_at_ = 0;                // since when it has been, or was asked for
  uint64_t arrived_there_ = 0;        // writes of this side that the peer has confirmed
  std::atomic<Nanos> due_{0};
  uint64_t notified_ = 0;
  uint64_t told_delivered_ = 0;
  uint64_t under_way_ = 0;   // operations
  uint64_t marks_ = 0;       // those of them that read the peer's mark
  Nanos refused_since_ = 0;  // since when the provider takes no operation
  Status close_reason_;
  Nanos deadline_ = 0;         // of kClosing and kParting
  bool peer_drained_ = false;  // the peer's operations have ended, as it says
  uint64_t peer_writes_ = 0;   // of these, the writes that must have arrived
  Nanos peer_drained_at_ = 0;
  bool told_drained_ = false;
  enum class Mark { kNone, kDue, kUnderWay, kRead } mark_ = Mark::kNone;

  std::atomic<bool> abandoned_{false};
  std::atomic<bool> needs_service_{false};
  std::atomic<bool> restless_{false};
};

}  // namespace rdma_transport::fabric::libfabric
