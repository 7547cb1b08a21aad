#include "fabric/verbs/channel.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/random.h"

namespace rdma_transport::fabric::verbs {

VerbsChannel::VerbsChannel(ChannelDevice* device, std::weak_ptr<ChannelHandler> handler,
                           uint32_t tag)
    : device_(device),
      handler_(std::move(handler)),
      tag_(tag),
      token_(RandomBytes(kTokenLength)),
      outbox_([this](Work work) { Push(work); }),
      writes_(device->lanes_of_writes()),
      reads_(device->lanes_of_reads()) {}

VerbsChannel::~VerbsChannel() {
  SettlePending();
  windows_.Clear();
  pairs_.clear();  // before the memory that they write
}

// --- Notifications out ---

Status VerbsChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                            After after) {
  if (state_.load(std::memory_order_acquire) != State::kConnected || !device_->adapter().Usable()) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const bool wake = urgency == Urgency::kWake;
  RDMA_RETURN_IF_ERROR(SendAfter(after, RecordKind::kNotification, parts, count, notified_ + 1,
                                 /*signaled=*/wake));
  ++notified_;
  if (number != nullptr) *number = notified_;
  return OkStatus();
}

// A signaled record is sent at once, together with all delayed records. Other records are delayed
// until the polling thread sends them. It is called before the look at whether it sleeps: it looks
// for calls after it has said that it sleeps.
Status VerbsChannel::AddRecord(RecordKind kind, const iovec* parts, int count, uint64_t number,
                               bool signaled) {
  RDMA_RETURN_IF_ERROR(outbox_.Add(kind, parts, count, number, signaled));
  if (!signaled) Attend();
  if (signaled || device_->asleep()) {
    outbox_.Close();
    Pump();
  }
  if (outbox_.WaitsForRoom()) Attend();
  return OkStatus();
}

// A batch is posted after the earlier writes on other queue pairs have ended.
void VerbsChannel::Push(Work work) {
  if (work.kind == Work::Kind::kBatch) {
    work.after = transfers_.begun();
    work.after[main_] = transfers_.ended()[main_];  // its own queue pair keeps the order
  }
  main().Push(work);
}

void VerbsChannel::Pump() {
  for (size_t i = pairs_.size(); i-- > 0 && state_.load() != State::kBroken;) {
    if (!pairs_[i]->HasWaiting()) continue;
    const Status posted = pairs_[i]->Pump(transfers_.ended());
    if (!posted.ok() && !FailPair(i, posted)) BreakLocked(posted);
  }
}

Status VerbsChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return Status(Code::kUnavailable, "the channel is not connected");
  outbox_.Close();
  Pump();
  return OkStatus();
}

bool VerbsChannel::NeedsProbes() const {
  if (!Serving(state_.load())) return false;  // Connect() may have the lock for long
  std::lock_guard<std::mutex> lock(mu_);
  return Serving(state_.load()) &&
         (outbox_.WaitsForRoom() || std::any_of(states_.begin(), states_.end(), [](const auto& s) {
            return s.phase == PairState::Phase::kFailed;
          }));
}

Nanos VerbsChannel::Probe(Nanos now) {
  if (!Serving(state_.load())) return now;  // Connect() may have the lock for long
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return now;
  AdvanceRails(now);
  if (main().AnswerDue()) return now;
  if (!outbox_.WaitsForRoom() && now - answered_at_ < device_->keepalive()) {
    return answered_at_ + device_->keepalive();
  }
  answered_at_ = now;  // if not, the probe fails
  Work nothing;
  nothing.signaled = true;
  main().Push(nothing);
  Pump();
  return now + device_->keepalive();
}

// --- One-sided operations ---

Backlog VerbsChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  Backlog backlog = outbox_.backlog();
  backlog.waiting_bytes += writes_.note_bytes();
  return backlog;
}

Status VerbsChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Transfer(Work::Kind::kRead, source, destination, cookie);
}

Status VerbsChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(Work::Kind::kWrite, destination, const_cast<char*>(source), cookie);
}

Status VerbsChannel::Transfer(Work::Kind kind, const RemoteSpan& span, char* local,
                              uint64_t cookie) {
  const bool write = kind == Work::Kind::kWrite;
  Work work;
  work.kind = kind;
  work.cookie = cookie;
  work.local = local;
  LocalEnds ends;
  Status refused = device_->memory().FindLocal(local, span.length, &ends);
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const Transfers::PeerRegion* region = nullptr;
  if (refused.ok()) refused = transfers_.Aim(span, kind, &region);
  if (refused.ok() && (!ends[main().port()].usable || region->ends[main_].usable == 0)) {
    refused = Status(Code::kResourceExhausted,
                     "memory is not registered with " + main().adapter()->Name());
  }
  if (!refused.ok()) {
    if (write) return refused;
    transfers_.Refuse(cookie, refused);
    Attend();
    device_->Wake();
    return OkStatus();
  }
  Lane& lane = LaneOf(kind);
  if (Lane::Takes(span.length, Piece(/*lanes=*/1))) {
    lane.Add({work, span, ends});
    AdvanceLane(&lane);
  } else {
    transfers_.Begin(work, Transfers::Part::kWhole, span, *region, ends, device_->chunk(), pairs_,
                     main_);
  }
  // With one queue pair, the write is posted together with the notification that follows it.
  if (!write || pairs_.size() > 1 || !lane.empty()) Pump();
  return OkStatus();
}

// --- The end ---

void VerbsChannel::Attend() {
  if (!needs_service_.exchange(true)) device_->Attend(tag_);
}

void VerbsChannel::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    PartLocked(reason);
  }
  device_->Wake();
}

// Sends the reason to the peer, and breaks the channel when it has arrived.
void VerbsChannel::PartLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kClosing || state == State::kBroken || state == State::kFinished) return;
  if (state == State::kNew) return BreakLocked(reason);
  close_reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  const iovec words = {const_cast<char*>(reason.message().data()),
                       std::min(reason.message().size(), kMaxReason)};
  SendAfter(After::Everything(), RecordKind::kBye, &words, 1, 0, /*signaled=*/true).IgnoreError();
  if (state_.load() != State::kBroken) state_.store(State::kClosing);
  Attend();
}

void VerbsChannel::Fail(const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  BreakLocked(reason);
}

// Only the first reason is kept.
void VerbsChannel::BreakLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kBroken || state == State::kFinished) return;
  if (state != State::kClosing) close_reason_ = reason;
  state_.store(State::kBroken);
  deadline_ = Now() + kFlushTimeout;
  for (const auto& pair : pairs_) {
    pair->Break();
    pair->TakeWaiting();
  }
  outbox_.Drop();
  writes_.Drop();
  reads_.Drop();
  Attend();
  device_->Wake();
}

bool VerbsChannel::Service() {
  needs_service_.store(false);  // first: what is requested from here on needs another call
  if (handler_.expired()) Close(Status(Code::kCancelled, "the user of this channel has gone"));
  DeliverNews();
  // What arrived before this has been handled, also if this process was suspended.
  const Nanos now = device_->polled_at();
  bool over = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const State state = state_.load();
    if (Serving(state)) {
      TakeConnected();
      outbox_.Close();
      Pump();
    }
    if (state == State::kClosing) {
      const bool sent = !gave_up_ && writes_.empty() && outbox_.AllWritten();
      if (sent || now > deadline_) BreakLocked(close_reason_);
      Attend();
    } else if (state == State::kBroken) {
      over = std::all_of(pairs_.begin(), pairs_.end(), [](const auto& p) { return p->Drained(); });
      over |= now > deadline_;
      if (!over) Attend();
    }
  }
  if (over) Finish();
  return state_.load() != State::kFinished;
}

void VerbsChannel::Finish() {
  Status reason;
  {
    std::lock_guard<std::mutex> lock(mu_);
    state_.store(State::kFinished);
    // This ends the peer's access to this memory. Windows are destroyed first, while their queue
    // pairs exist.
    windows_.Clear();
    pairs_.clear();
    states_.clear();
    shared_.clear();
    ports_.Close();
    inbox_.Close();
    SettlePending();
    reason = Status(Code::kUnavailable, close_reason_.message());
    if (flushed_ > 0) {
      Log(LogLevel::kDebug, route_ + ": " + std::to_string(flushed_) + " work requests flushed");
    }
  }
  if (const auto handler = handler_.lock()) handler->OnClosed(reason);
}

}  // namespace rdma_transport::fabric::verbs
