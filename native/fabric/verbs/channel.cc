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
      outbox_([this](const Work& work) { pair_->Push(work); }) {}

VerbsChannel::~VerbsChannel() {
  SettlePending();
  pair_.reset();  // before the memory that it writes
}

// --- Notifications out ---

Status VerbsChannel::Notify(const iovec* parts, int count, Urgency urgency, uint64_t* number,
                            After /*after*/) {
  if (state_.load(std::memory_order_acquire) != State::kConnected || !device_->adapter().Usable()) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const bool wake = urgency == Urgency::kWake;
  RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kNotification, parts, count, notified_ + 1,
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

void VerbsChannel::Pump() {
  if (state_.load() == State::kBroken) return;
  const Status posted = pair_->Pump();
  if (!posted.ok()) BreakLocked(posted);
}

Status VerbsChannel::Flush() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return Status(Code::kUnavailable, "the channel is not connected");
  outbox_.Close();
  Pump();
  return OkStatus();
}

bool VerbsChannel::NeedsProbes() const {
  std::lock_guard<std::mutex> lock(mu_);
  return Serving(state_.load()) && outbox_.WaitsForRoom();
}

Nanos VerbsChannel::Probe(Nanos now) {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return now;
  Status held;
  if (IsHeld(now, &held)) {
    BreakLocked(held);
    return now;
  }
  if (pair_->AnswerDue()) return now;
  if (answered_at_ == 0) answered_at_ = now;  // a peer that has not connected does not answer
  if (!outbox_.WaitsForRoom() && now - answered_at_ < device_->keepalive()) {
    return answered_at_ + device_->keepalive();
  }
  answered_at_ = now;  // if not, the probe fails
  Work nothing;
  nothing.signaled = true;
  pair_->Push(nothing);
  Pump();
  return now + device_->keepalive();
}

// Returns whether what was posted neither ends nor fails. Soft-RoCE stops its retries if an
// interface cannot send them, and may never begin again. A peer that is only stopped does not cause
// this, because its card answers.
bool VerbsChannel::IsHeld(Nanos now, Status* reason) {
  const VerbsSettings& settings = device_->adapter().settings();
  const Nanos retries = settings.retry_timeout * (settings.retries + 1);
  const Nanos limit = std::max(device_->keepalive(), 4 * retries);
  const uint64_t oldest = pair_->oldest();
  if (!pair_->AnswerDue() || std::exchange(oldest_, oldest) != oldest) oldest_since_ = now;
  if (now - oldest_since_ < limit || state_.load() != State::kConnected) return false;
  *reason = Status(Code::kUnavailable, "for " + std::to_string(limit / kMillisecond) +
                                           " ms, nothing that " + device_->adapter().Name() +
                                           " carries has ended or failed");
  return true;
}

// --- One-sided operations ---

Backlog VerbsChannel::backlog() const {
  std::lock_guard<std::mutex> lock(mu_);
  return outbox_.backlog();
}

Status VerbsChannel::Read(const RemoteSpan& source, char* destination, uint64_t cookie) {
  return Transfer(Work::Kind::kRead, source, destination, cookie);
}

Status VerbsChannel::Write(const char* source, const RemoteSpan& destination, uint64_t cookie) {
  return Transfer(Work::Kind::kWrite, destination, const_cast<char*>(source), cookie);
}

Status VerbsChannel::Check(const void* local, const RemoteSpan& span, Access access) const {
  LocalEnd end;
  RDMA_RETURN_IF_ERROR(device_->memory().FindLocal(local, span.length, &end));
  std::lock_guard<std::mutex> lock(mu_);
  return transfers_.Check(span, access);
}

Status VerbsChannel::Transfer(Work::Kind kind, const RemoteSpan& span, char* local,
                              uint64_t cookie) {
  const bool write = kind == Work::Kind::kWrite;
  Work work;
  work.kind = kind;
  work.cookie = cookie;
  work.local = local;
  Status refused = device_->memory().FindLocal(local, span.length, &work.local_end);
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  const RegionRecord* region = nullptr;
  const Access access = write ? Access::kRemoteReadWrite : Access::kRemoteRead;
  if (refused.ok()) refused = transfers_.Check(span, access, &region);
  if (!refused.ok()) {
    if (write) return refused;
    transfers_.End(cookie, refused);
    Attend();
    device_->Wake();
    return OkStatus();
  }
  work.remote = region->address + span.offset;
  work.rkey = region->rkey;
  work.length = static_cast<uint32_t>(span.length);
  PushTransfer(work);
  if (!write) Pump();  // a write is posted together with the notification that follows it
  return OkStatus();
}

// A read of the last byte may have to follow a write, which then ends with it: it does not pass the
// write on its way into the peer's memory.
void VerbsChannel::PushTransfer(Work work) {
  const bool proven = work.kind == Work::Kind::kWrite && work.length > 0 && proof_ != nullptr;
  work.last = !proven;
  pair_->Push(work);
  if (!proven) return;
  work.kind = Work::Kind::kRead;
  work.remote += work.length - 1;
  work.length = 1;
  work.last = true;
  work.local = proof_->address();
  work.local_end = {proof_->lkey(), proof_->shift()};
  pair_->Push(work);
}

// --- Memory ---

Status VerbsChannel::Share(uint64_t key) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (shared_.count(key) != 0) return OkStatus();
  }
  RegionRecord record = {};
  std::shared_ptr<Registration> memory;
  // Call without the lock, because it may pin pages.
  RDMA_RETURN_IF_ERROR(device_->memory().Describe(key, &record, &memory));
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() != State::kConnected) {
    return Status(Code::kUnavailable, "the channel is not connected");
  }
  if (shared_.count(key) != 0) return OkStatus();
  const iovec part = {&record, sizeof(record)};
  RDMA_RETURN_IF_ERROR(AddRecord(RecordKind::kRegion, &part, 1, 0, /*signaled=*/false));
  shared_[key] = std::move(memory);
  return OkStatus();
}

void VerbsChannel::WithdrawRegion(uint64_t key) {
  std::lock_guard<std::mutex> lock(mu_);
  if (shared_.erase(key) == 0 || state_.load() != State::kConnected) return;
  const iovec part = {&key, sizeof(key)};
  // If the notification is lost, the peer uses a key that the card refuses.
  AddRecord(RecordKind::kWithdraw, &part, 1, 0, /*signaled=*/false).IgnoreError();
}

bool VerbsChannel::Locate(const void* data, RemoteSpan* span) const {
  return device_->adapter().Usable() && device_->memory().Locate(data, span);
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
  if (state == State::kNew || !device_->adapter().active()) return BreakLocked(reason);
  close_reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  const iovec words = {const_cast<char*>(reason.message().data()),
                       std::min(reason.message().size(), kMaxReason)};
  AddRecord(RecordKind::kBye, &words, 1, 0, /*signaled=*/true).IgnoreError();
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
  if (!connecting_) pair_->Break();
  outbox_.Drop();
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
    if (Serving(state_.load())) {
      outbox_.Close();
      Pump();
    }
    const State state = state_.load();
    if (state == State::kClosing) {
      if (outbox_.AllWritten() || now > deadline_) BreakLocked(close_reason_);
      Attend();
    } else if (state == State::kBroken) {
      over = connecting_ || pair_->Drained() || now > deadline_;
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
    pair_.reset();  // this ends the peer's access
    shared_.clear();
    inbox_.Close();
    proof_.reset();
    SettlePending();
    reason = Status(Code::kUnavailable, close_reason_.message());
    if (flushed_ > 0) {
      Log(LogLevel::kDebug, route_ + ": " + std::to_string(flushed_) + " work requests flushed");
    }
  }
  if (const auto handler = handler_.lock()) handler->OnClosed(reason);
}

}  // namespace rdma_transport::fabric::verbs
