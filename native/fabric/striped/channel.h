#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/arrivals.h"
#include "base/clock.h"
#include "fabric/fabric.h"
#include "fabric/striped/address.h"
#include "fabric/striped/inbox.h"
#include "fabric/striped/lane.h"
#include "fabric/striped/rail.h"
#include "fabric/striped/wire.h"

namespace rdma_transport::fabric::striped {

// What a channel uses of its device. Thread-safe.
class ChannelDevice {
 public:
  virtual const std::string& name() const = 0;
  virtual const std::vector<std::unique_ptr<Device>>& rails() const = 0;
  // Returns them in the order of preference for a new channel: those whose port is down come last,
  // after those that have failed lately. Each with whether its port is up.
  virtual std::vector<std::pair<Device*, bool>> ordered_rails() const = 0;
  // A rail on this one has failed.
  virtual void NoteFailure(const Device* device) = 0;
  virtual size_t most_rails() const = 0;
  virtual Nanos peer_timeout() const = 0;
  // The number of lanes in which transfers wait; of all channels, for one direction.
  virtual std::atomic<int>* lanes_of_writes() = 0;
  virtual std::atomic<int>* lanes_of_reads() = 0;
  // Requests a call of Service() for this channel. Takes no lock of a channel.
  virtual void Attend(std::weak_ptr<StripedChannel> channel) = 0;
  // Runs `call` on another thread. It may take long.
  virtual void CallSlowly(std::function<void()> call) = 0;

 protected:
  ~ChannelDevice() = default;
};

// See Channel for the contract.
//
// Each end chooses a main rail, which carries its notifications and small transfers. Pieces of
// large transfers go by all rails that are up. What was written on another rail than the one that
// carries a notification is visible when that rail's record after it arrives; so the notification
// says for how many records of each rail it waits, and the peer holds it that long. If there are
// several rails, a write thus ends for the user when a record after it has been delivered: until
// then it may have to be repeated on another rail. See channel_failover.cc. A single rail carries
// the user's notifications as they are, and only large transfers wait here.
//
// mu_ guards the whole sending side; the inbox is the polling thread's. No lock is held while the
// handler runs.
class StripedChannel final : public Channel, public std::enable_shared_from_this<StripedChannel> {
 public:
  StripedChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler);

  // Opens the plain channels. Fails if there is none.
  Status Open();

  std::string Address() const override { return address_; }
  Status Connect(std::string_view peer_address, Role role, const Terms& terms) override;
  Status Share(uint64_t key) override;
  bool Locate(const void* data, RemoteSpan* span) const override;
  const char* fabric() const override { return device_->name().c_str(); }
  std::string Route() const override;
  bool Copies() const override { return false; }
  bool OutlivedByTransfers() const override;
  void Keep(OwnerRef memory) override;
  Status Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                After after) override;
  uint64_t Delivered() const override;
  Backlog backlog() const override;
  Status Read(const RemoteSpan& source, char* destination, uint64_t cookie) override;
  Status Write(const char* source, const RemoteSpan& destination, uint64_t cookie) override;
  Status Flush() override;
  void Close(const Status& reason) override;

  // Of the rails, on the polling thread.
  void OnRailConnected(const RailEnd* end);
  void OnRecord(const RailEnd* end, std::string_view data);
  void OnRailDelivered(const RailEnd* end, uint64_t number);
  void OnPieceEnded(const RailEnd* end, uint64_t index, const Status& status);
  void OnRailClosed(const RailEnd* end, const Status& status);
  void OnRailReleased(const RailEnd* end);

  // Of the device, on the polling thread: does what is pending.
  void Service(Nanos now);
  // Returns whether the handler is gone and the channel has not closed.
  bool abandoned() const { return handler_.expired() && state_.load() < State::kParting; }
  // Returns whether Service() must be called now and then.
  bool NeedsService() const { return timed_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kNone = kMaxRails;
  static constexpr uint32_t kWhole = ~uint32_t{0};  // a piece that is no part of a large transfer

  // kClosing: waits until what was queued is sent. kParting: the rails are closing.
  enum class State { kNew, kConnecting, kConnected, kClosing, kParting, kClosed };

  struct Piece {
    bool write = false;
    bool ended = false;    // the rail says so
    bool covered = false;  // a record after it has been delivered
    uint32_t transfer = kWhole;
    uint64_t cookie = 0;  // of a whole transfer
    char* local = nullptr;
    RemoteSpan span;
    size_t slot = kNone;   // kNone: not in use
    uint64_t record = 0;   // the first one after it on its rail, or 0
    uint64_t counted = 0;  // bytes in Rail::under_way
  };
  struct Transfer {
    uint64_t cookie = 0;
    uint32_t unfinished = 0;  // pieces
    uint32_t waiting = 0;     // parts of it in a lane
    Status status;
  };
  // A record that the peer may not have, if there are several rails.
  struct Sent {
    RecordKind kind = RecordKind::kNotification;
    bool free = false;     // it follows no writes
    uint64_t number = 0;   // among all records
    uint64_t follows = 0;  // all records up to this one
    uint64_t note = 0;     // the user's number, or 0
    uint32_t rail = 0;     // that carries it, or one of the two below
    uint64_t record = 0;   // its number there
    std::vector<Wait> waits;
    std::string bytes;
  };
  // Notifications that follow each other, by the numbers of the only rail and of the user: what
  // waits in a lane is overtaken.
  struct Run {
    uint64_t record = 0;
    uint64_t number = 0;
    uint64_t count = 0;
  };
  static constexpr uint32_t kConfirmed = ~uint32_t{0};
  static constexpr uint32_t kLost = kConfirmed - 1;
  // A large write that has begun.
  struct Begun {
    uint64_t cookie = 0;
    std::vector<Wait> waits;
  };

  static Status NotConnected() {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  bool Serving() const {
    const State state = state_.load();
    return state == State::kConnected || state == State::kClosing;
  }

  // All of these require mu_.
  Rail* Find(const RailEnd* end);
  Rail* FindId(uint32_t id);
  size_t SlotOf(const Rail* rail) const { return static_cast<size_t>(rail - rails_.data()); }
  bool several() const { return rails_.size() > 1; }
  // Returns whether a rail other than `slot` is there to go on with.
  bool OthersThan(size_t slot) const;
  size_t FirstUp() const;
  // Returns InvalidArgument if a notification of this length would be too long for a rail.
  Status CheckLength(size_t length) const;
  // Returns whether a rail has failed of which not all has been repeated.
  bool Unsettled() const;
  void Attend();

  // What is sent, in channel_sending.cc.
  Status SendNote(RecordKind kind, const iovec* parts, int count, Urgency urgency, uint64_t note,
                  After after);
  Status Post(Sent* sent, const iovec* parts, int count, Urgency urgency);
  Status SendControl(RecordKind kind, const RailRecord& record, std::string_view text = {});
  bool SendMark(size_t slot);
  void Cover(Rail* rail);
  std::vector<Wait> WaitsFor(RecordKind kind, After after, uint64_t about);
  void Remember(uint64_t cookie, std::vector<Wait> waits);
  Status SendAlone(const iovec* parts, int count, Urgency urgency, uint64_t number);
  void NoteDelivered(uint64_t record);
  bool Arrived(const Sent& sent);
  void NoteArrived();
  void RepeatNotes();

  // Transfers, in channel_transfers.cc.
  Status Begin(bool write, const RemoteSpan& span, char* local, uint64_t cookie);
  Status BeginWhole(bool write, const RemoteSpan& span, char* local, uint64_t cookie);
  Status BeginPiece(size_t slot, const Piece& piece);
  uint32_t RailsFor(bool write, const RemoteSpan& span, const char* local, Status* status) const;
  size_t ChooseRail(const Lane::Transfer& transfer, bool write, uint64_t* length) const;
  void Advance();
  void AdvanceLane(Lane* lane);
  bool AdvanceTransfer(Lane* lane);
  void EndBegin(const Lane::Transfer& transfer, bool write);
  void FinishPiece(uint32_t index);
  void FinishTransfer(uint32_t index);
  void BeginAgain(uint32_t index);
  uint32_t NewTransfer(uint64_t cookie);

  // Rails that fail, in channel_failover.cc.
  void FailRail(size_t slot, const Status& reason);
  void Progress();
  void Repeat(size_t slot);
  Status HandleControl(RecordKind kind, std::string_view bytes);

  // Rails that return, in channel_return.cc.
  void Prepare(size_t slot);
  void Greet(Rail* rail);
  void Use(Rail* rail);
  void WatchRails(Nanos now);
  void LeaveIfHeld(size_t slot, Nanos now);
  void OfferRail(size_t slot, Nanos now);
  Status MakeRail(size_t slot, uint32_t id);
  void ConnectRail(size_t slot, std::string_view address);
  void OnConnectBegun(uint32_t id, const Status& status);
  Status HandleOffer(RecordKind kind, const RailRecord& record, std::string_view address);
  void Empty(size_t slot);
  void NoteUnused(size_t slot, const std::string& why);

  // The end, in channel_end.cc.
  void CloseLocked(const Status& reason);
  void TryPart(Nanos now);
  void Part(bool at_once);

  // The polling thread's, without mu_.
  void ConnectIfReady(bool at_once);
  void HandUp(const Inbox::Record& record);
  void TellNews();
  void TellNews(std::unique_lock<std::mutex>* lock);
  void EndIfClosed();

  ChannelDevice* const device_;
  const std::weak_ptr<ChannelHandler> handler_;
  Terms terms_;
  std::string address_;

  Inbox inbox_;
  bool told_connected_ = false;
  bool told_closed_ = false;
  bool told_released_ = false;
  bool ignore_input_ = false;
  uint64_t told_delivered_ = 0;
  std::vector<std::pair<uint64_t, Status>> telling_;

  mutable std::mutex mu_;
  std::atomic<State> state_{State::kNew};
  std::atomic<bool> timed_{false};
  std::atomic<bool> attended_{false};
  std::vector<Rail> rails_;  // those that fit the peer's; before Connect(), all
  size_t main_ = kNone;
  bool active_ = false;
  uint64_t longest_ = ~uint64_t{0};  // notification
  uint64_t failures_ = 0;            // of rails
  std::set<uint64_t> shared_;        // keys of regions, if there are several rails
  uint32_t next_rail_ = 0;           // the next Rail::id
  Nanos connect_due_ = 0;            // not later, even if a better rail still connects
  Status reason_;                    // why it closes
  Nanos deadline_ = 0;               // of kClosing and kParting
  // Rails to be destroyed without mu_, and forgotten by the inbox.
  std::vector<std::pair<uint32_t, std::shared_ptr<Channel>>> dropped_;
  std::vector<std::function<void()>> slow_;  // to be called without mu_, on another thread

  Lane writes_;
  Lane reads_;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> free_pieces_;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_transfers_;
  std::deque<Begun> begun_;

  uint64_t notified_ = 0;
  uint64_t numbered_ = 0;      // records
  uint64_t ordered_ = 0;       // the last of them that follows everything
  uint64_t control_ = 0;       // the last of them that is not of the user, nor kSettled
  std::deque<Run> runs_;       // that have not arrived, if there is one rail
  std::deque<Sent> sent_;      // notifications, if there are several
  std::deque<Sent> controls_;  // other records
  size_t lost_ = 0;            // among both
  uint64_t sent_bytes_ = 0;    // in sent_
  Arrivals delivered_;         // user's numbers
  std::vector<std::pair<uint64_t, Status>> ended_;  // to be told
};

}  // namespace rdma_transport::fabric::striped
