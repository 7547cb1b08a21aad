// How a channel ends: by agreement with its peer, or without it.
#include <utility>

#include "base/printable.h"
#include "fabric/libfabric/channel.h"

namespace rdma_transport::fabric::libfabric {
namespace {

constexpr Nanos kClosingTimeout = 1 * kSecond;
constexpr Nanos kPartingTimeout = 500 * kMillisecond;
// A provider that takes no operation for so long, while none is under way, has no connection.
constexpr Nanos kUnreachable = kSecond;
constexpr Nanos kLimitInterval = kSecond;

}  // namespace

void LibfabricChannel::Close(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    CloseLocked(reason);
  }
  endpoint_->sleeper().Wake();
}

void LibfabricChannel::NotePeerClosed() {
  {
    std::lock_guard<std::mutex> lock(mu_);
    peer_drained_ = true;
    Attend();
  }
  endpoint_->sleeper().Wake();
}

void LibfabricChannel::Abandon() {
  abandoned_.store(true);
  Close(Status(Code::kCancelled, "the user of this channel has gone"));
}

void LibfabricChannel::Fail(const Status& reason) {
  {
    std::lock_guard<std::mutex> lock(mu_);
    PartLocked(reason);
  }
  endpoint_->sleeper().Wake();
}

void LibfabricChannel::CloseLocked(const Status& reason) {
  const State state = state_.load();
  if (state == State::kNew) return PartLocked(reason);
  if (state != State::kConnecting && state != State::kConnected) return;
  close_reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  state_.store(State::kClosing);
  outbox_.Close();
  Pump();
  Attend();
}

// Only the first reason is kept.
void LibfabricChannel::PartLocked(const Status& reason) {
  const State state = state_.load();
  if (state != State::kNew && !Serving(state)) return;
  if (state != State::kClosing) close_reason_ = reason;
  deadline_ = Now() + kPartingTimeout;
  outbox_.Drop();
  transfers_.Drop();
  confirm_due_ = asks_ = false;
  state_.store(State::kParting);
  if (state == State::kNew) {
    peer_drained_ = told_drained_ = true;  // there is no peer
  } else {
    told_drained_ = !Busy();
    end_due_ = true;
    Pump();
  }
  Attend();
  endpoint_->sleeper().Wake();
}

void LibfabricChannel::OnGone(const MessageHeader& header, std::string_view reason, Nanos now) {
  std::lock_guard<std::mutex> lock(mu_);
  if (state_.load() == State::kNew) return;
  if (header.kind == MessageKind::kDrained && !std::exchange(peer_drained_, true)) {
    peer_writes_ = header.writes;
    peer_drained_at_ = now;
  }
  PartLocked(
      Status(Code::kUnavailable, "the peer closed the channel: " + Printable(reason, kMaxReason)));
  Attend();
}

// Writes may end at the peer before they arrive here. One that was lost never does.
bool LibfabricChannel::PeerDrained(Nanos now) const {
  return peer_drained_ &&
         (arrived_.load() >= peer_writes_ || now - peer_drained_at_ > endpoint_->peer_timeout());
}

// The peer accesses nothing here, and nothing of this side is under way.
bool LibfabricChannel::Apart(Nanos now) const {
  if (Busy() || end_due_) return false;
  return PeerDrained(now) || (state_.load() == State::kLingering && mark_ == Mark::kRead);
}

// The peer has not said that its operations have ended. Those that start from now on find no
// registration, if it was the peer's own; and earlier ones have ended when a read of the peer's
// mark has, in whatever way. If it was not, only a read that fails says that the peer is gone.
void LibfabricChannel::LingerLocked() {
  state_.store(State::kLingering);
  shared_.clear();
  mark_ = peer_drained_ ? Mark::kNone : Mark::kDue;
}

void LibfabricChannel::TellDrained() {
  if (Busy() || std::exchange(told_drained_, true)) return;
  end_due_ = true;
  Pump();
}

bool LibfabricChannel::Service(Nanos now) {
  if (Abandoned()) Abandon();
  DeliverNews();
  bool closed = false;
  bool released = false;
  {
    std::lock_guard<std::mutex> lock(mu_);
    needs_service_.store(false, std::memory_order_relaxed);
    if (state_.load() == State::kClosing) outbox_.Close();
    Pump();
    if (state_.load() == State::kClosing) {
      const bool done = outbox_.Idle() && !Busy();
      if (done || now > deadline_) PartLocked(close_reason_);
    }
    if (state_.load() == State::kParting) {
      TellDrained();
      released = Apart(now);
      closed = released || now > deadline_;
      if (closed && !released) LingerLocked();
    } else if (state_.load() == State::kLingering) {
      TellDrained();
      // What the provider refuses for long, while nothing is under way, has no way to the peer.
      const bool unreachable =
          under_way_ == 0 && refused_since_ != 0 && now - refused_since_ > kUnreachable;
      if (unreachable) {
        end_due_ = false;
        mark_ = Mark::kRead;
      }
      released = Apart(now);
    }
    if (released) {
      state_.store(State::kFinished);
      shared_.clear();
    }
    const State state = state_.load();
    restless_.store(refused_since_ != 0 || state == State::kClosing || state == State::kParting,
                    std::memory_order_relaxed);
  }
  if (closed || released) TellClosed(released);
  return state_.load() != State::kFinished;
}

void LibfabricChannel::TellClosed(bool released) {
  const auto handler = Handler();
  if (handler == nullptr) return;
  if (std::exchange(told_closed_, true)) return handler->OnReleased();
  Status reason;
  {
    std::lock_guard<std::mutex> lock(mu_);
    reason = close_reason_;
  }
  if (released) {
    reason = Status(Code::kUnavailable, reason.message());
  } else if (reason.code() == Code::kUnavailable) {
    reason = Status(Code::kAborted, reason.message());
  }
  handler->OnClosed(reason);
}

void LibfabricChannel::BeforeSleep() {
  std::lock_guard<std::mutex> lock(mu_);
  if (!Serving(state_.load())) return;
  outbox_.Close();
  Pump();
}

// Operations that are under way to a host that has vanished end no earlier than the kernel gives up
// its connection.
void LibfabricChannel::LimitSilence(Nanos now) {
  if (now - limited_at_ <= kLimitInterval) return;
  {
    std::lock_guard<std::mutex> lock(mu_);
    const State state = state_.load();
    const bool silent = state == State::kConnected && under_way_ != 0 &&
                        now - heard_at_ > endpoint_->peer_timeout();
    if (state != State::kLingering && !silent) return;
  }
  limited_at_ = now;
  endpoint_->domain().LimitSilenceOf(remote_.name, endpoint_->peer_timeout());
}

void LibfabricChannel::Probe(Nanos now) {
  LimitSilence(now);
  const Nanos overdue = inbox_.waiting_since();
  std::lock_guard<std::mutex> lock(mu_);
  const State state = state_.load();
  if (state == State::kLingering) {
    if (mark_ == Mark::kNone && !peer_drained_ && now - heard_at_ > endpoint_->peer_timeout()) {
      heard_at_ = now;
      mark_ = Mark::kDue;
    }
    Attend();
  }
  if (state != State::kConnected) return;
  AskForConfirmation(now);
  if (overdue != 0 && now - overdue > endpoint_->peer_timeout()) {
    PartLocked(Status(Code::kUnavailable,
                      "a message or a write of the peer was lost on the way (" + route_ + ")"));
  } else if (under_way_ == 0 && refused_since_ == 0 &&
             now - heard_at_ > endpoint_->peer_timeout()) {
    // An idle peer that is gone is found out by an operation that fails.
    heard_at_ = now;
    mark_ = Mark::kDue;
    Pump();
  } else if (refused_since_ != 0 && under_way_ == 0 && now - refused_since_ > kUnreachable) {
    PartLocked(Status(Code::kUnavailable,
                      "the peer's endpoint takes no operations: its process, or the way to it, "
                      "is gone (" +
                          route_ + ")"));
  }
}

}  // namespace rdma_transport::fabric::libfabric
