// What a channel hands up, and how it ends.
#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "fabric/striped/channel.h"

namespace rdma_transport::fabric::striped {
namespace {

constexpr Nanos kClosingTimeout = kSecond;
constexpr size_t kMaxReason = 1024;  // bytes of the reason for closing

}  // namespace

// --- Arrivals ---

void StripedChannel::OnRecord(const RailEnd* end, std::string_view data) {
  if (ignore_input_ || told_closed_) return;
  if (!several()) {
    const auto handler = told_connected_ ? handler_.lock() : nullptr;
    if (handler != nullptr) handler->OnNotify(data.data(), data.size());
    return;
  }
  Inbox::Record record;
  bool now = false;
  const Status taken = inbox_.Take(end->rail, data, &record, &now);
  if (!taken.ok()) {
    ignore_input_ = true;
    return Close(taken);
  }
  if (record.kind == RecordKind::kHello) {
    {
      std::lock_guard<std::mutex> lock(mu_);
      Rail* rail = Find(end);
      if (rail == nullptr) return;  // the peer has declined it, and greets all the same
      rail->greeted = true;
      Use(rail);
    }
    return ConnectIfReady(/*at_once=*/false);
  }
  if (state_.load() == State::kConnecting && record.kind != RecordKind::kMark) {
    ConnectIfReady(/*at_once=*/true);
  }
  if (now) HandUp(record);
  while (!ignore_input_ && inbox_.Next(&record)) HandUp(record);
}

void StripedChannel::HandUp(const Inbox::Record& record) {
  if (record.kind == RecordKind::kNotification) {
    if (!told_connected_) {
      // It does not come up any more: it was closed meanwhile, or its first rail has failed.
      return Close(Status(Code::kUnavailable, "a rail failed while the channel connected"));
    }
    const auto handler = told_closed_ ? nullptr : handler_.lock();
    if (handler != nullptr) handler->OnNotify(record.bytes.data(), record.bytes.size());
    return;
  }
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() >= State::kParting) return;
    if (record.kind == RecordKind::kBye) {
      if (reason_.ok()) {
        reason_ = Status(Code::kUnavailable,
                         "the peer closed the channel: " + Printable(record.bytes, kMaxReason));
      }
      state_.store(State::kParting);
      return Part(/*at_once=*/true);
    }
    const Status handled = HandleControl(record.kind, record.bytes);
    if (!handled.ok()) {
      ignore_input_ = true;
      return CloseLocked(handled);
    }
    if (record.kind == RecordKind::kSettled) {
      RailRecord about;
      record.bytes.copy(reinterpret_cast<char*>(&about), sizeof(about));
      inbox_.Settle(about.rail);
    }
    Progress();
    Advance();
  }
  TellNews();
}

void StripedChannel::TellNews() {
  std::unique_lock<std::mutex> lock(mu_);
  TellNews(&lock);
}

// Unlocks.
void StripedChannel::TellNews(std::unique_lock<std::mutex>* lock) {
  const bool delivered = delivered_.AllTo() != told_delivered_;
  told_delivered_ = delivered_.AllTo();
  ended_.swap(telling_);
  lock->unlock();
  if (!told_closed_ && (delivered || !telling_.empty())) {
    if (const auto handler = handler_.lock()) {
      if (delivered) handler->OnDelivered(told_delivered_);
      for (const auto& [cookie, status] : telling_) handler->OnTransfer(cookie, status);
    }
  }
  telling_.clear();
}

// --- The end ---

void StripedChannel::Close(const Status& reason) {
  std::lock_guard<std::mutex> lock(mu_);
  CloseLocked(reason);
}

// Only the first reason is kept.
void StripedChannel::CloseLocked(const Status& reason) {
  const State state = state_.load();
  if (state >= State::kClosing) return;
  reason_ = reason;
  deadline_ = Now() + kClosingTimeout;
  timed_.store(true);
  if (state != State::kConnected || main_ == kNone) {
    state_.store(State::kParting);
    Part(/*at_once=*/true);
    return Attend();
  }
  state_.store(State::kClosing);
  if (several()) {  // the end of one rail is not that of the channel
    Lane::Note bye;
    bye.kind = RecordKind::kBye;
    bye.bytes = reason.message().substr(0, kMaxReason);
    writes_.Add(std::move(bye));
  }
  Advance();
  Attend();
}

void StripedChannel::TryPart(Nanos now) {
  if (state_.load() != State::kClosing) return;
  if (!writes_.empty() && now <= deadline_) return Attend();
  state_.store(State::kParting);
  Part(/*at_once=*/!several() || !writes_.empty());
}

// Closes the rails. If not at once, the main one first: the peer then knows that this is the end of
// the channel.
void StripedChannel::Part(bool at_once) {
  writes_.Drop();
  reads_.Drop();
  deadline_ = Now() + kClosingTimeout;
  timed_.store(true);
  for (size_t slot = 0; slot < rails_.size(); ++slot) {
    const Rail& rail = rails_[slot];
    if (rail.alive() && (at_once || slot == main_)) rail.channel->Close(reason_);
  }
  Attend();
}

void StripedChannel::EndIfClosed() {
  bool closed = false;
  bool released = true;
  Status status;
  {
    std::lock_guard<std::mutex> lock(mu_);
    if (state_.load() < State::kParting) return;
    for (const Rail& rail : rails_) {
      if (rail.channel == nullptr) continue;
      if (rail.alive()) return;
      if (rail.released) continue;
      released = false;
      status = rail.status;
    }
    closed = state_.exchange(State::kClosed) != State::kClosed;
    timed_.store(false);
    status = Status(released ? Code::kUnavailable : status.code(), reason_.message());
  }
  const auto handler = handler_.lock();
  if (closed) {
    told_closed_ = true;
    told_released_ = released;
    if (handler != nullptr) handler->OnClosed(status);
  } else if (released && !std::exchange(told_released_, true)) {
    if (handler != nullptr) handler->OnReleased();
  }
}

void StripedChannel::Service(Nanos now) {
  attended_.store(false);  // first: what is requested from here on needs another call
  if (handler_.expired()) Close(Status(Code::kCancelled, "the user of this channel has gone"));
  ConnectIfReady(/*at_once=*/false);
  decltype(dropped_) dropped;
  std::vector<std::function<void()>> slow;
  {
    std::lock_guard<std::mutex> lock(mu_);
    dropped.swap(dropped_);
    for (const auto& [id, channel] : dropped) inbox_.Settle(id);
    slow.swap(slow_);
    Progress();
    Advance();
    TryPart(now);
    if (state_.load() == State::kParting && now > deadline_) Part(/*at_once=*/true);
    timed_.store(state_.load() != State::kConnected && state_.load() != State::kClosed);
    if (several() && state_.load() == State::kConnected) WatchRails(now);
  }
  for (auto& call : slow) device_->CallSlowly(std::move(call));
  TellNews();
  EndIfClosed();
}

}  // namespace rdma_transport::fabric::striped
